#include "peer.h"

#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "bytes.h"

namespace fuzz {
namespace {

pid_t process = 0;
int channel = -1;

template <class T>
bool read_all(int from, T* value) {
  return read(from, value, sizeof(T)) == sizeof(T);
}

// Reads the first byte of physical memory and writes another one.
char exchange(void* handle, size_t bytes, char value) {
  void* start = nullptr;
  expect("aclrtReserveMemAddress", aclrtReserveMemAddress(&start, size_t{2} << 20, 0, nullptr, 0), {0});
  expect("aclrtMapMem", aclrtMapMem(start, bytes, 0, handle, 0), {0});
  const char before = *static_cast<char*>(start);
  *static_cast<char*>(start) = value;
  expect("aclrtUnmapMem", aclrtUnmapMem(start), {0});
  expect("aclrtReleaseMemAddress", aclrtReleaseMemAddress(start), {0});
  return before;
}

Reply answer(const Request& request, std::vector<void*>& imported) {
  Reply reply;
  switch (request.kind) {
    case Request::kImport: {
      void* handle = nullptr;
      reply.status = aclrtMemImportFromShareableHandle(request.shareable, request.device, &handle);
      if (reply.status != 0) break;
      imported.push_back(handle);
      reply.read = exchange(handle, request.bytes, request.write);
      break;
    }
    case Request::kImportNull:
      reply.status = aclrtMemImportFromShareableHandle(request.shareable, request.device, nullptr);
      break;
    case Request::kExport: {
      uint64_t again = 0;
      void* const handle = imported.empty() ? nullptr : imported.back();
      reply.status = aclrtMemExportToShareableHandle(handle, ACL_MEM_HANDLE_TYPE_NONE, 0, &again);
      break;
    }
    case Request::kFree:
      for (void* handle : imported) expect("aclrtFreePhysical", aclrtFreePhysical(handle), {0});
      imported.clear();
      break;
  }
  return reply;
}

[[noreturn]] void serve(int from) {
  expect("aclInit", aclInit(nullptr), {0});
  expect("aclrtSetDevice", aclrtSetDevice(0), {0});
  std::vector<void*> imported;
  Request request;
  while (read_all(from, &request)) {
    const Reply reply = answer(request, imported);
    if (write(from, &reply, sizeof(reply)) != sizeof(reply)) break;
  }
  _exit(0);
}

}  // namespace

void start_peer() {
#if defined(DESCEND_EMULATED)
  return;
#endif
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) fault("there is no socket");
  process = fork();
  if (process < 0) fault("there is no second process");
  close(ends[process == 0 ? 0 : 1]);
  if (process == 0) serve(ends[1]);
  channel = ends[0];
}

pid_t peer() { return process; }

Reply ask(const Request& request) {
  Reply reply;
  if (write(channel, &request, sizeof(request)) != sizeof(request) || !read_all(channel, &reply)) {
    fault("the second process has ended");
  }
  return reply;
}

}  // namespace fuzz
