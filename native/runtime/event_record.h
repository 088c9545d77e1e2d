// One recording of an event, shared by the event, the stream that will reach it and the streams that wait for it. Also
// used for other waits of a stream: until another thread completes it, or until a condition holds.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "runtime/futex.h"

namespace descend {
namespace detail {

class StreamQueue;

class EventRecord {
 public:
  // `then` is called when it is complete.
  explicit EventRecord(std::weak_ptr<StreamQueue> stream, std::function<void()> then = nullptr)
      : stream_(std::move(stream)), then_(std::move(then)) {}
  // Complete when `holds` returns true; the threads that wait call it repeatedly.
  explicit EventRecord(std::function<bool()> holds) : holds_(std::move(holds)) {}

  // The stream that will reach it; empty once that is destroyed.
  std::shared_ptr<StreamQueue> stream() const { return stream_.lock(); }

  bool complete() const { return (state_.load(std::memory_order_acquire) & kComplete) != 0; }

  // A second call changes nothing. Calls must not overlap. `reached` is false if the stream will never come to it.
  void set_complete(bool reached = true) {
    if (complete()) return;
    time_ = std::chrono::steady_clock::now();
    if (then_ && reached) then_();
    state_.fetch_or(kComplete, std::memory_order_release);
    futex_wake(state_, kWakeAll);
  }

  // Waits until it is complete. False if the deadline passed first, or if given_up() became true: after a change of
  // that, call nudge(), which has the waiting threads check it again.
  template <class GivenUp>
  bool wait(const Deadline& deadline, GivenUp given_up) {
    for (auto pause = kShortPause;; pause = std::min(2 * pause, kLongPause)) {
      const uint32_t seen = state_.load(std::memory_order_acquire);
      if ((seen & kComplete) != 0) return true;
      if (given_up()) return false;
      if (holds_ && holds_()) set_complete();
      if (complete()) return true;
      const auto now = std::chrono::steady_clock::now();
      if (deadline && now >= *deadline) return false;
      Deadline next = deadline;
      if (holds_) next = deadline ? std::min(*deadline, now + pause) : now + pause;
      futex_wait_until(state_, seen, next);
    }
  }
  void nudge() {
    state_.fetch_add(kNudge, std::memory_order_release);
    futex_wake(state_, kWakeAll);
  }

  std::chrono::steady_clock::time_point time() const { return time_; }  // once complete

 private:
  static constexpr uint32_t kComplete = 1;
  static constexpr uint32_t kNudge = 2;
  static constexpr std::chrono::nanoseconds kShortPause = std::chrono::microseconds(10);  // between two calls of holds
  static constexpr std::chrono::nanoseconds kLongPause = std::chrono::milliseconds(1);
  std::atomic<uint32_t> state_{0};
  std::chrono::steady_clock::time_point time_;
  const std::weak_ptr<StreamQueue> stream_;
  const std::function<bool()> holds_;
  const std::function<void()> then_;
};

}  // namespace detail

// The deadline of a timeout that begins now. Timeouts beyond a century have none.
inline Deadline deadline_after(std::optional<std::chrono::nanoseconds> timeout) {
  if (!timeout || *timeout > std::chrono::hours(24 * 36525)) return std::nullopt;
  return std::chrono::steady_clock::now() + std::max(*timeout, std::chrono::nanoseconds(0));
}

}  // namespace descend
