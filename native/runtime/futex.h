// Sleeping on a 32-bit word. Unlike a condition variable, it is usable after a fork, whatever state it was in.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <optional>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <algorithm>
#include <thread>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace descend {

using Deadline = std::optional<std::chrono::steady_clock::time_point>;

// One turn of a spin loop.
inline void spin_pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // `yield` is a no-op on most cores
#endif
}

#if defined(__linux__)

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

// Sleeps while `word` is `expected`, until woken. May also return for no reason.
inline void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

// The same, until the deadline at most.
inline void futex_wait_until(const std::atomic<uint32_t>& word, uint32_t expected, const Deadline& deadline) {
  if (!deadline) return futex_wait(word, expected);
  const auto since = deadline->time_since_epoch();  // steady_clock is CLOCK_MONOTONIC, and so is the futex's clock
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
  timespec absolute{};
  absolute.tv_sec = static_cast<time_t>(seconds.count());
  absolute.tv_nsec = static_cast<long>(std::chrono::nanoseconds(since - seconds).count());
  syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, expected, &absolute, nullptr, FUTEX_BITSET_MATCH_ANY);
}

inline void futex_wake(const std::atomic<uint32_t>& word, int count) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

#else

inline void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected) { word.wait(expected); }

inline void futex_wait_until(const std::atomic<uint32_t>& word, uint32_t expected, const Deadline& deadline) {
  if (!deadline) return futex_wait(word, expected);
  // C++20 has no timed wait on an atomic: poll, ever more slowly.
  using namespace std::chrono_literals;
  for (std::chrono::microseconds nap = 20us; word.load() == expected; nap = std::min(2 * nap, 1000us)) {
    if (std::chrono::steady_clock::now() >= *deadline) return;
    std::this_thread::sleep_for(nap);
  }
}

inline void futex_wake(std::atomic<uint32_t>& word, int count) {
  if (count == 1) {
    word.notify_one();
  } else {
    word.notify_all();
  }
}

#endif

inline constexpr int kWakeAll = 0x7FFFFFFF;

}  // namespace descend
