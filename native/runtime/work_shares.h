// Work sharing: the chunks of a parallel region, divided among its threads as they go.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace descend {

// Each thread begins with a share of its own: neighbouring chunks in order. It has the same share in every region, and
// so finds in its core's caches what it left there. A thread that is done takes chunks from the others' shares.
class WorkShares {
 public:
  void divide(int64_t chunks, int threads) {
    count_ = std::min(threads, kMostShares);
    for (int i = 0; i < count_; ++i) {
      Share& share = shares_[static_cast<size_t>(i)];
      share.next.store(i * chunks / count_, std::memory_order_relaxed);
      share.end = (i + 1) * chunks / count_;
    }
    all_begun_.store(false, std::memory_order_relaxed);
  }

  // Calls f(chunk) until no chunk is left or f returns false.
  template <class F>
  void take(int thread, F f) {
    for (int i = 0; i < count_; ++i) {
      Share& share = shares_[static_cast<size_t>((thread + i) % count_)];
      for (int64_t chunk; (chunk = share.next.fetch_add(1, std::memory_order_relaxed)) < share.end;) {
        if (!f(chunk)) return;
      }
    }
    all_begun_.store(true, std::memory_order_relaxed);
  }

  int count() const { return count_; }

  // Whether all chunks have been begun, as far as this thread can see.
  bool all_begun() const { return all_begun_.load(std::memory_order_relaxed); }

 private:
  static constexpr int kMostShares = 16;
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  std::array<Share, kMostShares> shares_;
  int count_ = 0;
  std::atomic<bool> all_begun_{false};
};

}  // namespace descend
