#include "runtime/shared_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <sstream>
#include <string_view>
#include <utility>

#include "runtime/addresses.h"
#include "runtime/immortal.h"
#include "runtime/memory_codes.h"

namespace descend {

// The contents of a file's last page, which the processes share.
struct SharedFile::Notice {
  static constexpr uint64_t kMagic = 0x796f6d656d676f64;
  static constexpr size_t kMaxPids = 900;

  uint64_t magic, number, bytes;
  int32_t device;
  std::atomic<uint32_t> open, anyone, pid_count;
  std::atomic<int32_t> pids[kMaxPids];

  bool is_for(int pid) const {
    const size_t count = std::min<size_t>(pid_count.load(std::memory_order_acquire), kMaxPids);
    return anyone != 0 || std::any_of(pids, pids + count, [pid](const auto& one) { return one == pid; });
  }
};

namespace {

constexpr const char* kName = "descend";
constexpr std::string_view kLink = "/memfd:descend";  // the name in /proc
constexpr int kPidBits = 22, kDescriptorBits = 20, kNumberBits = 22;

struct Published {
  std::mutex mutex;                                // guards SharedFile's members, too
  std::map<int, std::weak_ptr<SharedFile>> files;  // by their descriptors
};
Immortal<Published> table;

bool agree(uint64_t number, const Ticket& ticket) {
  const uint64_t mask = ticket.bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << ticket.bits) - 1;
  return (number & mask) == (ticket.number & mask);
}

#if defined(__linux__)
int new_file() { return memfd_create(kName, MFD_CLOEXEC); }
#else
// Memory with a name that is removed at once. Without /proc other processes cannot open it.
int new_file() {
  static std::atomic<unsigned> count{0};
  const std::string name = concat("/", kName, "-", getpid(), "-", count++);
  const int descriptor = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  if (descriptor >= 0) shm_unlink(name.c_str());
  return descriptor;
}
#endif

int create_descriptor() {
  int descriptor = new_file();
  rlimit limit{};
  if (descriptor >= 0 || errno != EMFILE || getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) {
    return descriptor;
  }
  // Each physical memory needs a descriptor. There is none left: raise the limit as far as the process may.
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) == 0) descriptor = new_file();
  return descriptor;
}

Status not_created(size_t bytes, int error) {
  if (error == EMFILE || error == ENFILE) {
    return failure(kNoDeviceMemory, "there is no file descriptor left for memory of ", bytes,
                   " bytes: `ulimit -n` is the number that a process may have.");
  }
  return failure(kNoDeviceMemory, "the system has no memory of ", bytes,
                 " bytes that processes can share: ", std::strerror(error), ".");
}

Status not_found(const Ticket& ticket, int error) {
  if (error == EACCES || error == EPERM) {
    return failure(kNoPermission, "the system does not let this process open the files of process ", ticket.pid,
                   ": both must belong to one user.");
  }
  if (error == EMFILE || error == ENFILE) return not_created(0, error);
  return failure(Code::kInvalidParam, "process ", ticket.pid,
                 " has ended, or no longer shares this memory, or runs in another container: it is not to be found.");
}

std::string path_of(const Ticket& ticket) { return concat("/proc/", ticket.pid, "/fd/", ticket.descriptor); }

// Whether this library made the file. Checked before it is opened: opening a device, say, could have an effect.
bool is_ours(const std::string& path, int* error) {
  char target[64];
  const ssize_t length = readlink(path.c_str(), target, sizeof target);
  *error = length < 0 ? errno : ENOENT;
  return length > 0 && std::string_view(target, static_cast<size_t>(length)).substr(0, kLink.size()) == kLink;
}

}  // namespace

Status SharedFile::create(size_t bytes, std::shared_ptr<SharedFile>* file) {
  std::shared_ptr<SharedFile> made(new SharedFile());
  made->bytes_ = detail::round_up(bytes, detail::page_size());
  made->descriptor_ = create_descriptor();
  if (made->descriptor_ < 0 || ftruncate(made->descriptor_, static_cast<off_t>(made->bytes_)) != 0) {
    return not_created(bytes, errno);
  }
  *file = std::move(made);
  return {};
}

Status SharedFile::open(const Ticket& ticket, std::shared_ptr<SharedFile>* file) {
  std::shared_ptr<SharedFile> made(new SharedFile());
  const std::string path = path_of(ticket);
  int error = 0;
  if (!is_ours(path, &error)) return not_found(ticket, error);
  made->descriptor_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat state{};
  if (made->descriptor_ < 0 || fstat(made->descriptor_, &state) != 0) return not_found(ticket, errno);
  const size_t page = detail::page_size();
  const auto size = static_cast<size_t>(state.st_size);
  if (size < 2 * page || size % page != 0) return not_found(ticket, ENOENT);
  made->bytes_ = size - page;
  void* const last =
      mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_SHARED, made->descriptor_, static_cast<off_t>(made->bytes_));
  if (last == MAP_FAILED) return not_created(page, errno);
  made->notice_ = static_cast<Notice*>(last);
  const Notice& notice = *made->notice_;
  if (notice.magic != Notice::kMagic || !agree(notice.number, ticket) || notice.open == 0 || notice.bytes == 0 ||
      notice.bytes > made->bytes_) {
    return not_found(ticket, ENOENT);
  }
  if (!notice.is_for(getpid())) {
    return failure(kNoPermission, "process ", getpid(), " is not on the list of those that process ", ticket.pid,
                   " shares this memory with.");
  }
  *file = std::move(made);
  return {};
}

std::shared_ptr<SharedFile> SharedFile::find_published(const Ticket& ticket) {
  if (ticket.pid != getpid()) return nullptr;
  std::shared_ptr<SharedFile> file;  // destroyed after the lock is released, if this is the last owner
  const std::lock_guard lock(table->mutex);
  const auto found = table->files.find(ticket.descriptor);
  if (found == table->files.end()) return nullptr;
  file = found->second.lock();
  return file && file->publishes_ > 0 && agree(file->notice_->number, ticket) ? file : nullptr;
}

SharedFile::~SharedFile() {
  if (publisher_ != 0) {
    const std::lock_guard lock(table->mutex);
    table->files.erase(descriptor_);
    if (publisher_ == getpid()) notice_->open = 0;
  }
  if (notice_ != nullptr) munmap(notice_, detail::page_size());
  if (descriptor_ >= 0) close(descriptor_);
}

bool SharedFile::map_at(void* address) const {
  if (mmap(address, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, descriptor_, 0) == MAP_FAILED) return false;
#if defined(MADV_HUGEPAGE)
  madvise(address, bytes_, MADV_HUGEPAGE);  // works if the system has huge pages for such files
#endif
  return true;
}

bool SharedFile::write(const void* from) const {
  for (size_t done = 0; done < bytes_;) {
    const ssize_t wrote =
        pwrite(descriptor_, static_cast<const char*>(from) + done, bytes_ - done, static_cast<off_t>(done));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    done += static_cast<size_t>(wrote);
  }
  return true;
}

Status SharedFile::publish(size_t bytes, int device, bool anyone, Ticket* ticket) {
  const std::lock_guard lock(table->mutex);
  if (notice_ == nullptr) {
    const size_t page = detail::page_size();
    void* last = MAP_FAILED;
    if (ftruncate(descriptor_, static_cast<off_t>(bytes_ + page)) == 0) {
      last = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, static_cast<off_t>(bytes_));
    }
    if (last == MAP_FAILED) return not_created(page, errno);
    static_assert(sizeof(Notice) <= 4096);
    notice_ = static_cast<Notice*>(last);
  }
  if (publishes_ == 0) {
    table->files[descriptor_] = weak_from_this();
    if (publisher_ == 0) publisher_ = getpid();
    std::random_device random;
    notice_->number = uint64_t{random()} << 32 | random();
    notice_->bytes = bytes;
    notice_->device = device;
    notice_->anyone = 0;
    notice_->pid_count = 0;
    notice_->magic = Notice::kMagic;
    notice_->open = 1;
  } else if (notice_->bytes != bytes) {
    return failure(Code::kInvalidParam, notice_->bytes, " bytes of this memory are shared already, so ", bytes,
                   " cannot be before that has ended.");
  }
  if (anyone) notice_->anyone = 1;
  ++publishes_;
  *ticket = {getpid(), descriptor_, notice_->number};
  return {};
}

Status SharedFile::allow(const int32_t* pids, size_t count) {
  const std::lock_guard lock(table->mutex);
  const uint32_t before = notice_->pid_count;
  if (count > Notice::kMaxPids - before) {
    return failure(Code::kInvalidParam, "the list would have more than ", Notice::kMaxPids, " processes.");
  }
  for (size_t i = 0; i < count; ++i) notice_->pids[before + i] = pids[i];
  notice_->pid_count.store(before + static_cast<uint32_t>(count), std::memory_order_release);
  return {};
}

void SharedFile::withdraw() {
  const std::lock_guard lock(table->mutex);
  if (publishes_ == 0 || --publishes_ > 0) return;
  if (publisher_ == getpid()) notice_->open = 0;
}

size_t SharedFile::published_bytes() const { return notice_->bytes; }
int SharedFile::published_device() const { return notice_->device; }

void SharedFile::lock_for_fork() { table->mutex.lock(); }
void SharedFile::unlock_after_fork() { table->mutex.unlock(); }

std::string to_key(const Ticket& ticket) {
  std::ostringstream key;
  key << "descend:" << ticket.pid << ":" << ticket.descriptor << ":" << std::hex << ticket.number;
  return key.str();
}

bool from_key(const char* key, Ticket* ticket) {
  const std::string text(key, strnlen(key, kKeyBytes));
  std::istringstream in(text);
  char colon = 0;
  *ticket = {};
  if (!text.starts_with("descend:")) return false;
  in.ignore(8) >> ticket->pid >> colon >> ticket->descriptor >> colon >> std::hex >> ticket->number;
  return !in.fail() && to_key(*ticket) == text;
}

Status to_handle(const Ticket& ticket, uint64_t* handle) {
  if (ticket.pid >> kPidBits != 0 || ticket.descriptor >> kDescriptorBits != 0) {
    return failure(kNotSupported, "process ", ticket.pid, " and its file ", ticket.descriptor,
                   " do not fit into a handle, which has room for ", kPidBits, " and ", kDescriptorBits, " bits.");
  }
  *handle = static_cast<uint64_t>(ticket.pid) << (kDescriptorBits + kNumberBits) |
            static_cast<uint64_t>(ticket.descriptor) << kNumberBits |
            (ticket.number & ((uint64_t{1} << kNumberBits) - 1));
  return {};
}

bool from_handle(uint64_t handle, Ticket* ticket) {
  ticket->pid = static_cast<int>(handle >> (kDescriptorBits + kNumberBits));
  ticket->descriptor = static_cast<int>(handle >> kNumberBits & ((1u << kDescriptorBits) - 1));
  ticket->number = handle & ((uint64_t{1} << kNumberBits) - 1);
  ticket->bits = kNumberBits;
  return ticket->pid > 0;
}

}  // namespace descend
