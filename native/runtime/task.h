// A task of a stream.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <new>
#include <stdexcept>

#include "runtime/status.h"

namespace descend {

// Work for a stream. If it fails, `run` returns a failure or throws. The stream then goes on, and its next
// synchronization reports the failure, once. `bytes` estimates the memory touched, by which the stream decides which
// thread runs it. The closure is destroyed by the thread that ran it, before the task counts as done. A task must not
// wait for its own stream.
struct Task {
  std::function<Status()> run;
  int64_t bytes = 0;
};

// Thrown where a task would wait without a limit for its own stream, which goes on only after the task.
struct WaitsForItself : std::logic_error {
  WaitsForItself() : logic_error("the stream that runs this function cannot be waited for in it: neither would end.") {}
};

inline constexpr int64_t kSmallTask = 1 << 20;  // bytes; a task up to this size is small

namespace detail {
// Turns what body() throws into a failure.
template <class Body>
Status guarded(Body&& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Status{Code::kRuntimeError, "out of memory", true};
  } catch (const std::exception& error) {
    return Status{Code::kRuntimeError, error.what()};
  } catch (...) {
    return Status{Code::kRuntimeError, "a step failed for an unknown reason"};
  }
}
}  // namespace detail

}  // namespace descend
