#include "runtime/ipc_event.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/event_record.h"

namespace descend {
namespace {

constexpr Code kFeatureUnsupported{200006};
constexpr uint64_t kMark = 0x31746e6576456364;  // "dcEvent1"

// The memory has no name, so nothing is left of it when the last process has ended. Another process opens it through
// the file descriptors of the process that made the handle.
struct Place {
  uint64_t mark = kMark;
  int64_t process = 0;
  int64_t file = 0;
  uint64_t device = 0, inode = 0;
};
static_assert(sizeof(Place) <= std::tuple_size_v<IpcHandle>);

Status system_failure(const char* what) {
  return failure(Code::kFailure, "the system does not ", what, ": ", std::strerror(errno), ".");
}

}  // namespace

Status IpcEvent::map(int file, std::shared_ptr<IpcEvent>* event) {
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) {
    Status status = system_failure("map an event's memory");
    close(file);
    return status;
  }
  event->reset(new IpcEvent(file, static_cast<Shared*>(memory)));
  return {};
}

Status IpcEvent::create(std::shared_ptr<IpcEvent>* event) {
#if defined(__linux__)
  const int file = memfd_create("descend-event", MFD_CLOEXEC);
  if (file < 0) return system_failure("give memory for an event");
  if (ftruncate(file, sizeof(Shared)) != 0) {
    Status status = system_failure("give memory for an event");
    close(file);
    return status;
  }
  DESCEND_RETURN_IF_ERROR(map(file, event));
  (*event)->shared_->mark = kMark;
  return {};
#else
  (void)event;
  return {kFeatureUnsupported, "events of several processes need Linux."};
#endif
}

Status IpcEvent::open(const IpcHandle& handle, std::shared_ptr<IpcEvent>* event) {
  Place place;
  std::memcpy(&place, handle.data(), sizeof(place));
  if (place.mark != kMark) return failure(Code::kInvalidParam, "handle is not of an event.");
  const std::string path = concat("/proc/", place.process, "/fd/", place.file);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat found = {};
  const bool same = file >= 0 && fstat(file, &found) == 0 && found.st_dev == place.device &&
                    found.st_ino == place.inode && static_cast<size_t>(found.st_size) == sizeof(Shared);
  if (!same) {
    if (file >= 0) close(file);
    return failure(Code::kInvalidParam, "handle is of an event that process ", place.process,
                   " no longer has, or does not let this process have.");
  }
  return map(file, event);
}

IpcEvent::~IpcEvent() {
  munmap(shared_, sizeof(Shared));
  close(file_);
}

IpcHandle IpcEvent::handle() const {
  struct stat found = {};
  (void)fstat(file_, &found);
  const Place place{kMark, getpid(), file_, found.st_dev, found.st_ino};
  IpcHandle handle{};
  std::memcpy(handle.data(), &place, sizeof(place));
  return handle;
}

void IpcEvent::complete_record(uint64_t number) {
  uint64_t now = shared_->complete.load();
  while (now < number && !shared_->complete.compare_exchange_weak(now, number, std::memory_order_release)) {
  }
}

bool IpcEvent::wait(uint64_t number, const Deadline& deadline) const {
  detail::EventRecord record([&] { return complete(number); });
  return record.wait(deadline, [] { return false; });
}

}  // namespace descend
