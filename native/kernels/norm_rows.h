// What the forward passes of layer norm and RMS norm share.
#pragma once

#include <algorithm>
#include <cstdint>

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

}  // namespace descend::kernels
