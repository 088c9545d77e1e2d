// What the forward passes of layer norm and RMS norm share.
#pragma once

#include <algorithm>

#include "kernels/cut.h"
#include "kernels/element.h"

namespace descend::kernels {

// Rows of a tile at most: their sums are folded together, and what follows from them is computed side by side. Of short
// rows it takes so many to hide how long each step takes.
inline constexpr int64_t kMaxRows = 64;

// A number for each row of a tile.
template <class W, int64_t kRows = kMaxRows>
struct TileRow {
  alignas(64) W of[kRows];

  void copy(int64_t rows, W* to) const { std::copy_n(of, rows, to); }
};

// How results are stored: as usual or past the caches, by way of a stage where their rows are not aligned.
enum class Stores : uint8_t { kPlain, kStream, kStaged };

// 16-bit rows that are shorter leave memory idle, whatever way they are stored.
inline constexpr int64_t kLeastStaged = 96;

template <class T>
Stores stores_of(const Rows<T>& y, int64_t columns, int64_t bytes) {
  if (stream_output(y.data, y.stride * static_cast<int64_t>(sizeof(T)), bytes)) return Stores::kStream;
  const bool staged = exceeds_last_cache(bytes) && (sizeof(T) > 2 || columns >= kLeastStaged);
  return staged ? Stores::kStaged : Stores::kPlain;
}

}  // namespace descend::kernels
