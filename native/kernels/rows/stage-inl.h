// Results on their way to memory past the caches, where their rows are not aligned.
#pragma once

#include <cstring>

#include "kernels/schedule/stores.h"
#include "kernels/simd/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Copies n bytes, less than a line.
HWY_INLINE void copy_part(const uint8_t* from, uint8_t* to, size_t n) {
#if HWY_TARGET == HWY_AVX3
  const hn::ScalableTag<uint8_t> d;
  const auto first = hn::FirstN(d, n % 64);
  hn::BlendedStore(hn::MaskedLoad(first, d, from), first, d, to);
#else
  const auto move = [&](auto bytes) HWY_ATTR {
    if ((n & bytes()) == 0) return;
    std::memcpy(to, from, bytes());
    to += bytes(), from += bytes();
  };
  move(std::integral_constant<size_t, 32>());
  move(std::integral_constant<size_t, 16>());
  move(std::integral_constant<size_t, 8>());
  move(std::integral_constant<size_t, 4>());
  move(std::integral_constant<size_t, 2>());
  move(std::integral_constant<size_t, 1>());
#endif
}

// Copies lines, n of them, past the caches.
HWY_INLINE void copy_lines(const uint8_t* from, uint8_t* to, size_t n) {
  const hn::ScalableTag<uint8_t> d;
  for (size_t i = 0; i < 64 * n; i += 64) {
    DESCEND_UNROLL
    for (size_t k = 0; k < 64; k += hn::MaxLanes(d)) store_bits<true>(d, hn::LoadU(d, from + i + k), to + i + k);
  }
}

template <class T>
inline constexpr int64_t kLineElements = 64 / sizeof(T);

// Room for results of so many elements, all of rows with one stride and one number of columns, on their way to rows
// that are not aligned. Of rows without gaps, what is left of a line waits for the rows that share it: those of the
// next call, if they lie there, or finish(). A line that was stored in parts would have to be fetched.
template <class T, int64_t kElements>
class Stage {
 public:
  HWY_INLINE Stage() {}

  // Where rows of n columns that belong at `to` are to be written in the stage, for stream() with the same `to`.
  HWY_INLINE Rows<T> rows(const Rows<T>& to, int64_t n) {
    if (to.stride != n) return {lines_, ceil_div(n, kLineElements<T>) * kLineElements<T>};
    if (bytes_of(to.data) != next_) {
      finish();
      next_ = bytes_of(to.data);
    }
    return {reinterpret_cast<T*>(bytes_of(lines_) + waiting_), n};
  }

  // Moves them on.
  HWY_INLINE void stream(const Rows<T>& to, int64_t rows, int64_t n) {
    uint8_t* const from = bytes_of(lines_);
    const size_t row = static_cast<size_t>(n) * sizeof(T);
    if (to.stride == n) {
      const size_t size = waiting_ + static_cast<size_t>(rows) * row;
      const size_t moved = move_on(from, next_ - waiting_, size);
      next_ += size - waiting_;
      waiting_ = size - moved;
      std::memmove(from, from + moved, 64);
      return;
    }
    const Rows<T> staged = this->rows(to, n);
    for (int64_t r = 0; r < rows; ++r) {
      const size_t moved = move_on(bytes_of(staged.row(r)), bytes_of(to.row(r)), row);
      copy_part(bytes_of(staged.row(r)) + moved, bytes_of(to.row(r)) + moved, row - moved);
    }
  }

  // Moves on what waits.
  HWY_INLINE void finish() {
    if (waiting_ > 0) copy_part(bytes_of(lines_), next_ - waiting_, waiting_);
    waiting_ = 0;
  }

 private:
  static HWY_INLINE uint8_t* bytes_of(T* p) { return reinterpret_cast<uint8_t*>(p); }

  // The n bytes at `from`, but for the part of a line that they end with. How many these are.
  static HWY_INLINE size_t move_on(const uint8_t* from, uint8_t* to, size_t n) {
    const size_t head = HWY_MIN(-reinterpret_cast<uintptr_t>(to) % 64, n), lines = (n - head) / 64;
    if (head > 0) copy_part(from, to, head);
    copy_lines(from + head, to + head, lines);
    return head + 64 * lines;
  }

  uint8_t* next_ = nullptr;  // where what is written next belongs
  size_t waiting_ = 0;       // bytes that belong before it
  // With what waits, and as much as is read beyond the end when that is moved to the front.
  alignas(64) T lines_[kElements + 2 * kLineElements<T>];
};

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
