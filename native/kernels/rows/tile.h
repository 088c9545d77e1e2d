// What the compiled loops over rows hand each other: plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/rows/mask_rows.h"
#include "kernels/schedule/cut.h"
#include "kernels/schedule/rows.h"
#include "kernels/simd/element.h"

namespace descend::kernels {

inline constexpr int kMostInputs = 4;             // row streams that are read
inline constexpr int kMostOutputs = 2;            // row streams that are written
inline constexpr int kMostParameters = 2;         // numbers a column
inline constexpr int kMostNumbers = 3;            // numbers a row that are read
inline constexpr int kMostTerms = 5;              // numbers a row that follow from its sums
inline constexpr int kMostScalars = 3;            // numbers of a call
inline constexpr int kMostSums = 2;               // sums over a row, or over columns
inline constexpr int kMostMeans = kMostSums + 1;  // of the former, in double, and the pivot

// Columns whose terms are summed in one chain of float; the chains are added in double. Columns of a block, whose lanes
// are folded to one number. Both are parts of what a sum is: they hold on every machine.
template <class W>
inline constexpr int64_t kRunColumns = 1024 / static_cast<int64_t>(sizeof(W));
inline constexpr int64_t kBlockColumns = kBlock;

template <class W>
inline constexpr int64_t kLanes = 128 / static_cast<int64_t>(sizeof(W));  // of a sum in the making

// Rows of at most so many columns are worked on by columns: so many rows at a time, each lane of a column's sum taking
// every 16th row.
inline constexpr int64_t kMostNarrow = 4;
inline constexpr int64_t kNarrowRows = 256;
inline constexpr int64_t kNarrowLanes = 16;

// So many columns of a row are kept on the stack. Of longer rows a thread keeps more, in memory of its own, and makes
// the rest again. Softmax of 256 x 16385 float16 takes 0.62 of the time so, of 70 x 131072 float32 0.9 (Zen 5).
inline constexpr int64_t kKeptColumns = 8192;
template <class W>
inline constexpr int64_t kKeptInRoom = (int64_t{512} << 10) / static_cast<int64_t>(sizeof(W));

// A row stream: strides are in bytes.
struct Stream {
  char* data = nullptr;
  int64_t stride = 0;

  char* row(int64_t i) const { return data + i * stride; }
};

template <class T>
Stream stream_of(const Rows<T>& rows) {
  return {reinterpret_cast<char*>(const_cast<std::remove_const_t<T>*>(rows.data)),
          rows.stride * static_cast<int64_t>(sizeof(T))};
}

// What is prefetched while a column is read: how many bytes beyond it, for each input.
struct Prefetch {
  int64_t inside = 0;                // while that is in the same row; 0: nothing is prefetched
  int64_t beyond[kMostInputs] = {};  // near the row's end: what is read next is elsewhere
  bool maps = false;                 // the second pass prefetches, not the first
  bool in_sums = false;              // the first pass over short rows does, beyond a row at once
  bool in_order = false;             // a few columns' reads are done before the next are begun
};

// Some rows that are worked on together, from one of their columns on.
template <class W>
struct Tile {
  int64_t rows = 0;
  int64_t columns = 0;
  Stream in[kMostInputs];
  Stream out;
  const W* numbers[kMostNumbers] = {};  // those of the rows that are read
  const W* parameters[kMostParameters] = {};
  W* column_sums[kMostSums] = {};
  Prefetch prefetch;
  bool streams = false;            // results are stored past the caches
  bool in_lines = false;           // and vectors of them begin where lines do, wherever the row begins
  double* chains[kMostSums] = {};  // of very few columns: the lanes of their sums
  uint64_t exact = 0;              // rows that must be computed in double, a bit a row
  bool dense = false;              // the rows lie one behind the other, and are so short that they are mapped as one
  const uint8_t* mask_bytes = nullptr;  // of operators that have a mask: of all the rows' elements where these are so,
  MaskRow mask[kMostTileRows];          // else of each row
  W scalars[kMostScalars];              // of the call
  W* kept = nullptr;                    // of operators that keep what is summed: that, so many columns a row
  int64_t kept_columns = 0;
  int64_t most_kept = 0;  // columns of a row that are kept: whole blocks, if not all
  alignas(64) W terms[kMostTerms][kMostTileRows];
  alignas(64) double sums[kMostSums][kMostTileRows];
};

}  // namespace descend::kernels
