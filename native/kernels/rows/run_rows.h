// Rows that know nothing of each other, on all threads.
#pragma once

#include <algorithm>

#include "kernels/schedule/cut.h"
#include "runtime/parallel.h"

namespace descend::kernels {

// Calls f(first, end) for parts of the rows. The cut changes no result. work: on one row, in bytes (row_work()).
template <class F>
void run_rows(int64_t rows, int64_t columns, int64_t work, F f) {
  constexpr int64_t kTakes = 8;                  // of each thread: enough to even out their speeds
  constexpr int64_t kLeast = int64_t{16} << 10;  // elements of a part
  int64_t part = rows;
  const auto cut = [&](int threads) {
    if (threads > 1) part = std::max(ceil_div(rows, kTakes * threads), ceil_div(kLeast, columns));
    return ceil_div(rows, part);
  };
  parallel_for(rows, rows * work, cut, [&](int64_t i) { f(i * part, std::min(rows, (i + 1) * part)); });
}

}  // namespace descend::kernels
