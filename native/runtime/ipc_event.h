// An event shared between processes: counters in shared memory.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "runtime/futex.h"
#include "runtime/status.h"

namespace descend {

// Another process can open the event by this handle, as long as the process that gave the handle has the event.
using IpcHandle = std::array<char, 64>;

class IpcEvent {
 public:
  static Status create(std::shared_ptr<IpcEvent>* event);
  static Status open(const IpcHandle& handle, std::shared_ptr<IpcEvent>* event);
  ~IpcEvent();
  IpcEvent(const IpcEvent&) = delete;
  IpcEvent& operator=(const IpcEvent&) = delete;

  IpcHandle handle() const;

  // A record gets its number when it is put on a stream, and is complete when the stream has reached it.
  uint64_t begin_record() { return shared_->begun.fetch_add(1) + 1; }
  void complete_record(uint64_t number);
  uint64_t latest() const { return shared_->begun.load(); }  // 0: never recorded
  bool complete(uint64_t number) const { return shared_->complete.load(std::memory_order_acquire) >= number; }
  // False if the deadline passed first.
  bool wait(uint64_t number, const Deadline& deadline) const;

 private:
  struct Shared {
    std::atomic<uint64_t> mark;  // shows that the memory holds an event
    std::atomic<uint64_t> begun;
    std::atomic<uint64_t> complete;
  };
  static_assert(std::atomic<uint64_t>::is_always_lock_free);

  IpcEvent(int file, Shared* shared) : file_(file), shared_(shared) {}
  static Status map(int file, std::shared_ptr<IpcEvent>* event);

  const int file_;
  Shared* const shared_;
};

}  // namespace descend
