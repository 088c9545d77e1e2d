// Time that has gone by, for what is measured.
#pragma once

#include <chrono>

namespace descend {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace descend
