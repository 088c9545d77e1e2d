// Operators whose results follow from the inputs in the same place alone: what a call is, and how threads share it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "kernels/rows/convert.h"
#include "kernels/schedule/cut.h"
#include "kernels/simd/element.h"
#include "runtime/parallel.h"

namespace descend::kernels {

// kIn inputs and kOut results, in rows. A result may be exactly an input.
template <class T, int kIn, int kOut>
struct Elements {
  int64_t rows, columns;
  Rows<const T> in[kIn];
  Rows<T> out[kOut];

  // Whether results go past the caches.
  bool streams() const {
    const auto one = rows * columns * static_cast<int64_t>(sizeof(T));
    return streams_results({(kIn + kOut) * one, kOut * one});
  }
  int64_t work() const { return (kIn + kOut) * sizeof(Wide<T>); }  // of an element
};

// Rows of elements whose type is known at run time.
struct AnyRows {
  void* data;
  int64_t stride;
  Element type;

  void* at(int64_t row, int64_t column) const {
    return static_cast<char*>(data) + (row * stride + column) * size_of(type);
  }
};

// The same of streams that have types of their own, computed in W.
template <class W, int kIn, int kOut>
struct MixedElements {
  int64_t rows, columns;
  AnyRows in[kIn], out[kOut];

  bool streams() const { return false; }  // they mostly take the place of what has just been read
  int64_t work() const { return (kIn + kOut) * sizeof(W); }
};

// A part of a call: columns [column, column + columns) of rows [row, row + rows).
struct ElementPart {
  int64_t row, rows;
  int64_t column, columns;
  bool streams;  // whether results go past the caches
};

// Runs `walk` (elements-inl.h) on all parts. No result depends on how they are cut.
template <class Problem, class Walk>
void run_elements(Problem p, Walk walk) {
  constexpr int64_t kTakes = 8;                  // of each thread: enough to even out their speeds
  constexpr int64_t kLeast = int64_t{16} << 10;  // elements of a part
  constexpr int64_t kUnit = 1024;                // elements of a row that are not cut
  if (p.rows == 0 || p.columns == 0) return;
  const auto has_no_gaps = [&](const auto& rows) { return rows.stride == p.columns; };
  if (std::all_of(std::begin(p.in), std::end(p.in), has_no_gaps) &&
      std::all_of(std::begin(p.out), std::end(p.out), has_no_gaps)) {
    p.columns *= p.rows;
    p.rows = 1;
  }
  const int64_t elements = p.rows * p.columns;
  const bool streams = p.streams();
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
  parallel_for(most, elements * p.work(), cut, [&](int64_t i) {
    const int64_t across = ceil_div(p.columns, columns);
    const int64_t row = i / across * rows, column = i % across * columns;
    walk(p, {row, std::min(rows, p.rows - row), column, std::min(columns, p.columns - column), streams});
  });
}

}  // namespace descend::kernels
