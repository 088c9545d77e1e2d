// Memory that several processes map: an anonymous file (memfd), which has no name that could be left behind.
//
// How another process finds it: every process can open the files of another one of the same user by way of
// /proc/PID/fd/N, as a debugger could (PTRACE_MODE_READ). So a ticket says which process, which descriptor, and a
// random number. That number stands in the file's last page, too, with the list of the processes that may map it: so a
// ticket whose process has ended, or which now has another file there, is recognised. The list is what programs agree
// on among themselves, not a guard against others of the same user. The kernel keeps the memory until the last process
// has unmapped it.
//
// After a fork the child shares it with its parent, as it does all that is mapped from a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/status.h"

namespace descend {

struct Ticket {
  int pid = 0;
  int descriptor = 0;
  uint64_t number = 0;
  int bits = 64;  // of the number that are known
};
// As text, and as one number, which has room for some bits of the random one.
inline constexpr size_t kKeyBytes = 65;  // with the 0 at its end
std::string to_key(const Ticket& ticket);
bool from_key(const char* key, Ticket* ticket);  // false for what to_key does not give
Status to_handle(const Ticket& ticket, uint64_t* handle);
bool from_handle(uint64_t handle, Ticket* ticket);

class SharedFile : public std::enable_shared_from_this<SharedFile> {
 public:
  static Status create(size_t bytes, std::shared_ptr<SharedFile>* file);
  // Another process's. Fails with a sentence where it is not to be found, or not for this process.
  static Status open(const Ticket& ticket, std::shared_ptr<SharedFile>* file);
  // Of those published here.
  static std::shared_ptr<SharedFile> find_published(const Ticket& ticket);

  ~SharedFile();  // others that have it mapped keep it, but nobody finds it any more
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  size_t bytes() const { return bytes_; }  // whole pages
  bool map_at(void* address) const;    // in the place of what is mapped there; false, with errno, where it cannot be
  bool write(const void* from) const;  // all of its bytes

  // Lets others find it: the first `bytes` of it, as memory of a device (its number in the
  // machine). With `anyone`, those that are not on the list,
  // too. Each publish is undone by a withdraw.
  Status publish(size_t bytes, int device, bool anyone, Ticket* ticket);
  Status allow(const int32_t* pids, size_t count);
  void withdraw();
  bool published() const { return publishes_ > 0; }

  size_t published_bytes() const;
  int published_device() const;

  static void lock_for_fork();
  static void unlock_after_fork();

 private:
  struct Notice;

  SharedFile() = default;

  int descriptor_ = -1;
  size_t bytes_ = 0;
  Notice* notice_ = nullptr;  // the last page, once there is one
  int publisher_ = 0;         // the process that published it first
  int publishes_ = 0;
};

}  // namespace descend
