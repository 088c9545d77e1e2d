// Tasks for the tests of streams.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "runtime/stream.h"

inline constexpr int64_t kLarge = int64_t{1} << 30;

template <class Body>
descend::Task large(Body body) {
  return {[body]() mutable {
            body();
            return descend::Status{};
          },
          kLarge};
}

template <class Body>
descend::Task small(Body body) {
  return {[body]() mutable {
            body();
            return descend::Status{};
          },
          100};
}

// A task that holds its stream until opened.
struct Gate {
  std::shared_ptr<std::atomic<int>> state = std::make_shared<std::atomic<int>>(0);  // 1: reached, 2: open
  descend::Task task(int64_t bytes = kLarge) {
    return {[state = state] {
              int expected = 0;
              state->compare_exchange_strong(expected, 1);
              while (*state != 2) std::this_thread::sleep_for(std::chrono::microseconds(100));
              return descend::Status{};
            },
            bytes};
  }
  void reached() const {
    while (*state == 0) std::this_thread::yield();
  }
  void open() { *state = 2; }
};
