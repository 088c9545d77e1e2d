// Operators whose results follow from the inputs in the same place alone: what a call is, and how threads share it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cut.h"
#include "kernels/element.h"
#include "runtime/parallel.h"

namespace descend::kernels {

// kIn inputs and kOut results, in rows. A result may be exactly an input.
template <class T, int kIn, int kOut>
struct Elements {
  int64_t rows, columns;
  Rows<const T> in[kIn];
  Rows<T> out[kOut];
};

// A part of a call: columns [column, column + columns) of rows [row, row + rows).
struct ElementPart {
  int64_t row, rows;
  int64_t column, columns;
  bool streams;  // whether results go past the caches
};

// Runs `walk` (elements-inl.h) on all parts. No result depends on how they are cut.
template <class T, int kIn, int kOut>
void run_elements(Elements<T, kIn, kOut> p, void (*walk)(const Elements<T, kIn, kOut>&, const ElementPart&)) {
  constexpr int64_t kTakes = 8;                  // of each thread: enough to even out their speeds
  constexpr int64_t kLeast = int64_t{16} << 10;  // elements of a part
  constexpr int64_t kUnit = 1024;                // elements of a row that are not cut
  constexpr auto kSize = static_cast<int64_t>(sizeof(T)), kWork = static_cast<int64_t>(sizeof(Wide<T>));
  if (p.rows == 0 || p.columns == 0) return;
  const auto has_no_gaps = [&](const auto& rows) { return rows.stride == p.columns; };
  if (std::all_of(p.in, p.in + kIn, has_no_gaps) && std::all_of(p.out, p.out + kOut, has_no_gaps)) {
    p.columns *= p.rows;
    p.rows = 1;
  }
  const int64_t elements = p.rows * p.columns;
  const bool streams = streams_results({(kIn + kOut) * elements * kSize, kOut * elements * kSize});
  int64_t rows = p.rows, columns = p.columns;  // of a part
  const auto cut = [&](int threads) {
    if (threads == 1) return int64_t{1};
    const int64_t target = std::max(ceil_div(elements, kTakes * threads), kLeast);
    if (p.columns > target) {
      const int64_t parts = ceil_div(p.columns, target);
      rows = 1;
      columns = ceil_div(ceil_div(p.columns, parts), kUnit) * kUnit;
    } else {
      rows = target / p.columns;
    }
    return ceil_div(p.rows, rows) * ceil_div(p.columns, columns);
  };
  const int64_t most = std::max<int64_t>(ceil_div(elements, kLeast), 1);
  parallel_for(most, (kIn + kOut) * elements * kWork, cut, [&](int64_t i) {
    const int64_t across = ceil_div(p.columns, columns);
    const int64_t row = i / across * rows, column = i % across * columns;
    walk(p, {row, std::min(rows, p.rows - row), column, std::min(columns, p.columns - column), streams});
  });
}

}  // namespace descend::kernels
