// Memory that several processes map: an anonymous file (memfd), which has no name that could be left behind.
//
// How another process finds the file: a process can open files of another process of the same user through
// /proc/PID/fd/N, as a debugger can (PTRACE_MODE_READ). So a ticket names a process and a descriptor, and has a random
// number. The file's last page holds the same number, and the list of the processes that may map the file. The number
// shows when a ticket is out of date: its process has ended, or has another file at that descriptor. The list is an
// agreement between programs. It does not protect against other programs of the same user. The kernel keeps the memory
// until the last process has unmapped it.
//
// After a fork the child shares the memory with its parent, as every shared mapping of a file.
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
  int bits = 64;  // how many bits of the number are known
};
// A ticket as text, and as one integer, which has room for only some bits of the random number.
inline constexpr size_t kKeyBytes = 65;  // with the terminating 0
std::string to_key(const Ticket& ticket);
bool from_key(const char* key, Ticket* ticket);  // false if to_key could not have made it
Status to_handle(const Ticket& ticket, uint64_t* handle);
bool from_handle(uint64_t handle, Ticket* ticket);

class SharedFile : public std::enable_shared_from_this<SharedFile> {
 public:
  static Status create(size_t bytes, std::shared_ptr<SharedFile>* file);
  // Opens another process's file. Fails with a message if it is not found, or if this process may not map it.
  static Status open(const Ticket& ticket, std::shared_ptr<SharedFile>* file);
  // The file that this process published with this ticket.
  static std::shared_ptr<SharedFile> find_published(const Ticket& ticket);

  ~SharedFile();  // other processes keep their mappings, but it cannot be opened any more
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  size_t bytes() const { return bytes_; }  // whole pages
  bool map_at(void* address) const;        // replaces what is mapped there; false, with errno, on failure
  bool write(const void* from) const;      // all of its bytes

  // Lets other processes open the first `bytes` of it, as memory of a device (its number in the machine). With `anyone`
  // a process need not be on the list. Each call of publish needs a call of withdraw.
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
  int publisher_ = 0;         // the first process that published it
  int publishes_ = 0;
};

}  // namespace descend
