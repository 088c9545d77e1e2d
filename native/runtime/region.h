// A parallel region in progress, as its caller and the pool's workers share it.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "runtime/clock.h"
#include "runtime/work_shares.h"

namespace descend {

// A parallel region in progress. Workers look for one with openings and join it. What they need to begin is in one
// cache line: to bring a line to another core takes a good part of a small region's time. Regions are reused and never
// freed, so that a worker may look at one that is over.
struct Region {
  // The number of workers inside, whether the caller is parked until they leave, and the number of openings. A worker
  // takes an opening before it reads anything else. The caller leaves when nobody is inside and nothing is open.
  static constexpr uint32_t kWorker = 1, kWorkers = 0xFFF, kCallerParked = 0x1000, kOpening = 0x2000;
  static constexpr uint32_t kOpenings = ~(kOpening - 1);

  alignas(64) std::atomic<uint32_t> state{0};
  int core = -1;  // where the caller began
  void (*body)(void* context, int64_t chunk) = nullptr;
  void* context = nullptr;
  uint32_t timed = 0;               // counts regions: every eighth measures how far its workers are
  Clock::time_point begin{};        // of a region that measures; else 0
  std::atomic<int32_t> latency{0};  // nanoseconds until the first spinning worker joined; 0: none did

  WorkShares shares;

  static int openings(uint32_t state) { return static_cast<int>(state / kOpening); }
  static int workers(uint32_t state) { return static_cast<int>(state & kWorkers); }

  // A look at the clock takes a part of the time that it measures, so only some regions measure.
  void begin_to_measure() {
    begin = timed++ % 8 == 0 ? Clock::now() : Clock::time_point{};
    latency.store(0, std::memory_order_relaxed);
  }
  void measure_latency() {
    const auto took = std::clamp<std::chrono::nanoseconds>(Clock::now() - begin, std::chrono::nanoseconds(1),
                                                           std::chrono::seconds(1));
    int32_t none = 0;
    latency.compare_exchange_strong(none, static_cast<int32_t>(took.count()), std::memory_order_relaxed);
  }
};
static_assert(offsetof(Region, shares) == 64);

}  // namespace descend
