// How far the cores that work together are from each other.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "runtime/clock.h"

namespace descend {

// Told by the time that a helper who is awake takes to come. Where cores share a cache that is some 100 ns; where they
// do not, as on several chiplets or sockets, it is more than twice as long, and so is the way of all else that one core
// writes and another reads. On a virtual machine it changes from second to second.
class Distance {
 public:
  static constexpr std::chrono::nanoseconds kFar{200};
  static constexpr int kInARow = 4;                       // one helper may have been held up
  static constexpr std::chrono::milliseconds kValid{50};  // then it is to be tried again

  void note(std::chrono::nanoseconds way, Clock::time_point now) {
    if (way < kFar) {
      clear(far_);
      clear(until_);
    } else if (far_.load(std::memory_order_relaxed) + 1 < kInARow) {
      far_.fetch_add(1, std::memory_order_relaxed);
    } else {
      until_.store((now + kValid).time_since_epoch().count(), std::memory_order_relaxed);
    }
  }

  // Whether they are far, for all that is known. It looks at the clock only where they were.
  bool is_far() const { return until_.load(std::memory_order_relaxed) != 0 && is_far(Clock::now()); }
  bool is_far(Clock::time_point now) const {
    return now.time_since_epoch().count() < until_.load(std::memory_order_relaxed);
  }

 private:
  // A cache line that everybody reads is written only for a reason.
  static void clear(auto& number) {
    if (number.load(std::memory_order_relaxed) != 0) number.store(0, std::memory_order_relaxed);
  }

  std::atomic<int> far_{0};  // ways in a row
  std::atomic<Clock::rep> until_{0};
};

}  // namespace descend
