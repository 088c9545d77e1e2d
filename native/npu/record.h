// Records the calls of operators for a report: how many there were with the same shapes and dtypes, and their time.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace descend::npu {

using Tensors = std::vector<std::pair<std::string, std::string>>;  // names, dtypes and shapes

// Calls of one operator with the same tensors. For each operator 256 such kinds are kept apart. Further kinds are added
// up as `others`, without tensors.
struct Recorded {
  std::string op;
  Tensors tensors;
  bool others = false;
  uint64_t calls = 0, errors = 0, nanoseconds = 0;
};

// On: forgets what was recorded, and records from now on the calls of all threads. A forked child begins from nothing.
void record(bool on);
std::vector<Recorded> recorded();

// One call: it begins with this object and ends with it. Its time is wall time on its thread. The time of calls within
// it counts for those calls only.
class Recording {
 public:
  Recording(const c10::OperatorHandle& op, const torch::jit::Stack& stack, size_t arguments) {
    if (on_.load(std::memory_order_relaxed)) start(op, stack, arguments);
  }
  ~Recording() {
    if (entry_ != nullptr) finish();
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // The operator's own work begins. The time before this was spent waiting for other work, and does not count.
  void begin_work() {
    if (entry_ != nullptr) begun_ = Clock::now();
  }

  struct Entry;

 private:
  using Clock = std::chrono::steady_clock;
  friend void record(bool on);
  static std::atomic<bool> on_;
  static thread_local Recording* innermost_;

  void start(const c10::OperatorHandle& op, const torch::jit::Stack& stack, size_t arguments) noexcept;
  void finish() noexcept;

  std::shared_ptr<Entry> entry_;
  Recording* outer_ = nullptr;
  int exceptions_ = 0;
  Clock::time_point entered_, begun_;
  Clock::duration within_{};  // calls within this one, since it began
};

}  // namespace descend::npu
