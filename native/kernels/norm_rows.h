// What the forward passes of layer norm and RMS norm share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/stores.h"

namespace descend::kernels {

// Rows of a tile at most: their sums are folded together, and what follows from them is computed side by side. Of the
// shortest it takes so many to hide how long each step takes.
inline constexpr int64_t kMaxRows = 32;

// How a norm's results are stored: rows of so many bytes or more line by line, shorter ones by way of a stage. Where
// rows begin in the middle of words, the lines that they share are fetched, and they have to be longer: most so where
// the second-level cache is asked, as on Zen 4.
inline constexpr int64_t kLeastOfWords = 1280, kLeastOfOthers = int64_t{4} << 10;
inline int64_t least_of_others() { return kAsksSecondLevel ? kLeastOfOthers : 2560; }
template <class T>
Stores norm_stores_of(const Rows<T>& y, int64_t columns, int64_t bytes) {
  return row_stores_of(y, columns, even_traffic(bytes), are_aligned(y, kWord) ? kLeastOfWords : least_of_others());
}

// Whether rows are worked on one after the other, a stretch at a time, and what goes past the caches line by line.
template <class T>
constexpr bool goes_in_lines(int64_t columns, Stores stores) {
  return stores != Stores::kStaged && are_long<T>(columns);
}

// A number for each row of a tile.
template <class W, int64_t kRows = kMaxRows>
struct TileRow {
  alignas(64) W of[kRows];

  void copy(int64_t rows, W* to) const { copy_few(of, rows, to); }
};

// gamma and beta beside bfloat16 are split: the even columns and the odd ones are kept apart. Elements that either
// take, in whole lines and with what is read beyond the last.
constexpr int64_t half_room(int64_t n) { return (n / 64 + 2) * 32; }

// And both, or as many of a parameter that is widened.
template <class T>
constexpr int64_t parameter_room(int64_t n) {
  return sizeof(T) == 2 ? 2 * half_room(n) : 1;
}

// Whether they are so long that they are split or widened once for all rows.
template <class T>
constexpr bool shares_parameters(int64_t columns) {
  return sizeof(T) == 2 && columns > kStripeColumns && columns <= kMostRowColumns;
}

// Rows of a chunk, at least, where it splits or widens them for itself.
template <class T>
inline constexpr int64_t kLeastChunkRows = sizeof(T) == 2 ? 8 : 1;

}  // namespace descend::kernels
