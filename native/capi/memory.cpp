// Device memory: allocations, copies, fills.
#include "runtime/memory.h"

#include <unistd.h>

#include <cstring>

#include "acl/acl_rt.h"
#include "capi/state.h"

using namespace descend;
using namespace descend::capi;

namespace {

Status invalid(const auto&... parts) { return failure(Code::kInvalidParam, parts...); }

// A range that begins inside a known allocation must end inside it; other host memory is taken as it is.
Status check_range(const char* name, const void* begin, size_t count) {
  if (begin == nullptr) return null_argument(name);
  const Allocation allocation = find_allocation(begin);
  if (!allocation) return {};
  const size_t room = allocation.bytes - static_cast<size_t>(static_cast<const char*>(begin) - allocation.begin);
  if (count <= room) return {};
  return invalid(name, " is asked for ", count, " bytes, but its allocation has ", room, " from there on.");
}

Status check_copy(void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind kind) {
  if (kind > ACL_MEMCPY_DEFAULT) return invalid("kind is ", static_cast<int>(kind), ", which is none.");
  if (count > destMax) return invalid("count is ", count, " bytes, but destMax only ", destMax, ".");
  DESCEND_RETURN_IF_ERROR(check_range("dst", dst, count));
  return check_range("src", src, count);
}

Status check_fill(void* devPtr, size_t maxCount, size_t count) {
  if (count > maxCount) return invalid("count is ", count, " bytes, but maxCount only ", maxCount, ".");
  return check_range("devPtr", devPtr, count);
}

// Puts body() on a stream.
template <class Body>
Status submit(aclrtStream handle, size_t bytes, Body body) {
  std::shared_ptr<Stream> stream;
  DESCEND_RETURN_IF_ERROR(get_stream(handle, &stream));
  stream->submit({[body]() -> Status {
                    body();
                    return {};
                  },
                  static_cast<int64_t>(std::min<size_t>(bytes, INT64_MAX))});
  return {};
}

}  // namespace

aclError aclrtGetMemInfo(aclrtMemAttr attr, size_t* free, size_t* total) {
  return runtime_call("aclrtGetMemInfo", [&]() -> Status {
    if (attr > ACL_HBM_MEM_NORMAL) {
      return invalid("attr is ", static_cast<int>(attr), ", which is none.");
    }
    if (free == nullptr) return null_argument("free");
    if (total == nullptr) return null_argument("total");
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    *free = static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * page;
    *total = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * page;
    return {};
  });
}

aclError aclrtMalloc(void** devPtr, size_t size, aclrtMemMallocPolicy) {
  return runtime_call("aclrtMalloc", [&] { return allocate(size, devPtr); });
}

aclError aclrtMallocAlign32(void** devPtr, size_t size, aclrtMemMallocPolicy) {
  return runtime_call("aclrtMallocAlign32", [&] { return allocate(size, devPtr); });
}

aclError aclrtMallocCached(void** devPtr, size_t size, aclrtMemMallocPolicy) {
  return runtime_call("aclrtMallocCached", [&] { return allocate(size, devPtr); });
}

aclError aclrtFree(void* devPtr) {
  return runtime_call("aclrtFree", [&] { return release(devPtr); });
}

aclError aclrtMallocHost(void** hostPtr, size_t size) {
  return runtime_call("aclrtMallocHost", [&] { return allocate(size, hostPtr); });
}

aclError aclrtFreeHost(void* hostPtr) {
  return runtime_call("aclrtFreeHost", [&] { return release(hostPtr); });
}

aclError aclrtMemset(void* devPtr, size_t maxCount, int32_t value, size_t count) {
  return runtime_call("aclrtMemset", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_fill(devPtr, maxCount, count));
    std::memset(devPtr, value, count);
    return {};
  });
}

aclError aclrtMemsetAsync(void* devPtr, size_t maxCount, int32_t value, size_t count, aclrtStream stream) {
  return runtime_call("aclrtMemsetAsync", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_fill(devPtr, maxCount, count));
    return submit(stream, count, [=] { std::memset(devPtr, value, count); });
  });
}

aclError aclrtMemcpy(void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind kind) {
  return runtime_call("aclrtMemcpy", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_copy(dst, destMax, src, count, kind));
    std::memmove(dst, src, count);
    return {};
  });
}

aclError aclrtMemcpyAsync(void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind kind,
                          aclrtStream stream) {
  return runtime_call("aclrtMemcpyAsync", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_copy(dst, destMax, src, count, kind));
    return submit(stream, count, [=] { std::memmove(dst, src, count); });
  });
}
