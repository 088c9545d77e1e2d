#include "runtime/move_to_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#if defined(__linux__)
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#endif

#include "runtime/addresses.h"
#include "runtime/memory_codes.h"

namespace descend {

#if defined(__linux__) && defined(UFFDIO_REGISTER_MODE_MISSING) && defined(SYS_userfaultfd)
namespace {

#if !defined(MREMAP_DONTUNMAP)
constexpr int MREMAP_DONTUNMAP = 4;
#endif
#if !defined(UFFD_USER_MODE_ONLY)
constexpr int UFFD_USER_MODE_ONLY = 1;
#endif

// Watches pages: a thread that touches a missing page waits until this object is destroyed.
class Watch {
 public:
  Watch(void* start, size_t bytes) {
    // Only with a privilege can a system call that touches a page be made to wait. Without it the call fails.
    descriptor_ = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC));
    if (descriptor_ < 0) descriptor_ = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY));
    uffdio_api api{};
    api.api = UFFD_API;
    uffdio_register pages{};
    pages.range = {detail::address_of(start), bytes};
    pages.mode = UFFDIO_REGISTER_MODE_MISSING;
    watches_ = descriptor_ >= 0 && ioctl(descriptor_, UFFDIO_API, &api) == 0 &&
               ioctl(descriptor_, UFFDIO_REGISTER, &pages) == 0;
    error_ = errno;
  }
  ~Watch() {
    if (descriptor_ >= 0) close(descriptor_);  // which wakes all threads that wait
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  bool watches() const { return watches_; }
  int error() const { return error_; }

 private:
  int descriptor_ = -1, error_ = 0;
  bool watches_ = false;
};

// Moves pages in order, and counts the bytes moved. The kernel moves only one of its own mappings at a time.
bool move_pages(char* from, char* to, size_t bytes, int flags, size_t* moved) {
  if (mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | flags, to) != MAP_FAILED) {
    *moved += bytes;
    return true;
  }
  const size_t half = bytes / 2 / detail::page_size() * detail::page_size();
  return errno == EFAULT && half > 0 && move_pages(from, to, half, flags, moved) &&
         move_pages(from + half, to + half, bytes - half, flags, moved);
}

Status not_permitted(const char* what, int error) {
  return failure(kNotSupported, "the system does not permit ", what, " (", std::strerror(error),
                 "), without which memory that is in use cannot be shared with other processes. Memory of "
                 "aclrtMallocPhysical can be, which torch_npu uses with expandable_segments:True.");
}

}  // namespace

Status move_to_file(void* start, const SharedFile& file) {
  const size_t bytes = file.bytes();
  void* const aside = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (aside == MAP_FAILED) return failure(kNoDeviceMemory, "there is no room for ", bytes, " bytes.");
  const auto home = static_cast<char*>(start), away = static_cast<char*>(aside);
  Status status;
  {
    const Watch watch(start, bytes);
    size_t moved = 0, moved_back = 0;
    if (!watch.watches()) {
      status = not_permitted("userfaultfd", watch.error());
    } else if (!move_pages(home, away, bytes, MREMAP_DONTUNMAP, &moved)) {  // home stays, empty
      status = not_permitted("mremap with MREMAP_DONTUNMAP", errno);
    } else if (!file.write(away) || !file.map_at(start)) {
      status = failure(kNoDeviceMemory, "there is no memory for ", bytes,
                       " bytes that processes can share: ", std::strerror(errno), ".");
    }
    if (!status.ok() && moved > 0) (void)move_pages(away, home, moved, 0, &moved_back);
  }
  munmap(aside, bytes);
  return status;
}
#else
Status move_to_file(void*, const SharedFile&) {
  return failure(kNotSupported,
                 "this system has no userfaultfd, without which memory that is in use cannot "
                 "be shared with other processes.");
}
#endif

bool take_back_from_file(void* start, size_t bytes) {
  return mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
}

}  // namespace descend
