// One recording of an event, shared by the event, the stream that will reach it and the streams that wait for it.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "runtime/futex.h"

namespace descend {
namespace detail {

class EventRecord {
 public:
  bool complete() const { return done_.load(std::memory_order_acquire) != 0; }

  // A second call changes nothing. Calls must not overlap.
  void set_complete() {
    if (complete()) return;
    time_ = std::chrono::steady_clock::now();
    done_.store(1, std::memory_order_release);
    futex_wake(done_, kWakeAll);
  }

  // False if the deadline passed first.
  bool wait(const Deadline& deadline) const {
    while (!complete()) {
      if (deadline && std::chrono::steady_clock::now() >= *deadline) return false;
      futex_wait_until(done_, 0, deadline);
    }
    return true;
  }

  std::chrono::steady_clock::time_point time() const { return time_; }  // once complete

 private:
  std::atomic<uint32_t> done_{0};
  std::chrono::steady_clock::time_point time_;
};

}  // namespace detail

// The deadline of a timeout that begins now. Timeouts beyond a century have none.
inline Deadline deadline_after(std::optional<std::chrono::nanoseconds> timeout) {
  if (!timeout || *timeout > std::chrono::hours(24 * 36525)) return std::nullopt;
  return std::chrono::steady_clock::now() + std::max(*timeout, std::chrono::nanoseconds(0));
}

}  // namespace descend
