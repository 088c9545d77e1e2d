// What was computed, and how long it took: for whoever keeps count of calls.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace descend {

struct Meter {
  std::atomic<uint64_t> runs = 0, nanoseconds = 0;

  void add(std::chrono::steady_clock::duration time) {
    runs.fetch_add(1, std::memory_order_relaxed);
    nanoseconds.fetch_add(static_cast<uint64_t>(std::chrono::nanoseconds(time).count()), std::memory_order_relaxed);
  }
};

}  // namespace descend
