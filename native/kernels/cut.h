// How work on rows is cut, and which stores go past the caches.
//
// A tile is a few rows that are read twice, the second time from cache. A stripe is some tiles whose column sums run in
// float. A chunk is what one thread takes at a time: some stripes, whose column sums are added in double to one slot. A
// block is a stretch of a row's columns that is summed on its own. All follow from the shape alone, never from the
// machine: they decide in which order sums are added.
#pragma once

#include <cstddef>
#include <cstdint>

namespace descend::kernels {

// Columns in a block.
inline constexpr int64_t kBlock = 2048;

// Rows are no longer than this where column sums of a stripe are kept: they stay in a second-level cache.
inline constexpr int64_t kStripeColumns = 16384;

// Rows in the tallest stripe.
inline constexpr int64_t kMaxStripe = 32;

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t blocks_in(int64_t columns) { return ceil_div(columns, kBlock); }

struct RowCut {
  int64_t tile;    // rows
  int64_t stripe;  // rows, a multiple of the tile
  int64_t chunk;   // rows, a multiple of the stripe
  int64_t chunks;  // at least 1
};

// row_bytes: what one row of all inputs takes.
RowCut cut_rows(int64_t rows, int64_t columns, int64_t row_bytes);

// Long rows are cut along the columns instead, where there are too few of them for the threads or one fills a cache.
bool split_columns(int64_t rows, int64_t columns, int64_t row_bytes);

// Rows that the threads share then at a time, so that the second pass finds them in a cache.
int64_t group_rows(int64_t row_bytes);

// Whether an output should be stored past the caches: it and the inputs do not stay in them, and its rows are aligned.
bool stream_output(const void* data, int64_t row_stride_bytes, int64_t output_bytes, int64_t all_bytes);

}  // namespace descend::kernels
