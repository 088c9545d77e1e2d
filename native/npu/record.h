// Records the calls of operators for a report: how many there were with the same shapes and dtypes, and their time.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace descend::npu {

struct Recorded {
  std::string op, arguments;
  uint64_t calls;
  double seconds;
};

// Switches recording on or off.
void record(bool on);
std::vector<Recorded> recorded();

// One call: it begins with this object and ends with it.
class Recording {
 public:
  Recording(const c10::OperatorHandle& op, const torch::jit::Stack& stack, size_t arguments) {
    if (on_.load(std::memory_order_relaxed)) start(op, stack, arguments);
  }
  ~Recording() {
    if (op_ != nullptr) finish();
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

 private:
  friend void record(bool on);
  static std::atomic<bool> on_;

  void start(const c10::OperatorHandle& op, const torch::jit::Stack& stack, size_t arguments);
  void finish() noexcept;

  const c10::OperatorHandle* op_ = nullptr;
  std::string described_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace descend::npu
