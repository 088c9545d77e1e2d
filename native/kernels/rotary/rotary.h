// Rotary position embedding and its gradient: what a call is, and how its work is cut.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/rows/row_grid.h"
#include "kernels/schedule/cut.h"
#include "kernels/simd/element.h"

namespace descend::kernels {

// Pairs that are worked on at a time, of a row that is longer.
inline constexpr int64_t kSpanPairs = 512;

// Numbers that are summed side by side, dcos' and dsin's of a few rows: at least those of one such span.
inline constexpr int64_t kSumRoom = 4096;

// Where the two members of a pair lie in a row of D elements.
enum class Pairing : uint8_t {
  kHalves,      // at i and i + D / 2, in all tensors
  kNeighbours,  // at 2 i and 2 i + 1, in all tensors
  kMixed,       // as neighbours in x and its gradient, as halves in all others
};

// Rows that are turned: y, by cos and sin, of x; or the gradient dx of dy.
template <class T>
struct Turn {
  enum { kFrom, kCos, kSin, kTo, kTensors };
  RowGrid<kTensors> grid;
  int64_t columns;
  Pairing pairing;
  const T *from, *cos, *sin;
  T* to;
};

// The gradients of all inputs. Where grid's dimensions are broadcast, dcos and dsin have the stride 0.
template <class T>
struct RotaryGrad {
  enum { kDy, kCos, kSin, kDx, kX, kDcos, kDsin, kTensors };
  using Grid = RowGrid<kTensors>;
  Grid grid;
  int64_t columns;
  Pairing pairing;
  const T *dy, *cos, *sin, *x;
  T *dx, *dcos, *dsin;
  Element element;  // T's
  double* slots;    // RotaryCut::slots() rows: for each sum those of dcos, then those of dsin
};

// The rows of dcos and dsin, the sums, and the rows that are added up to each.
template <class Grid>
struct RotaryCut {
  static constexpr int64_t kChunk = 256;  // a multiple of all that stripe_rows() gives

  Grid kept;          // the dimensions of the sums but the last
  int64_t along = 1;  // sums along their last dimension
  typename Grid::Strides step{};
  Grid outer, inner;  // the broadcast dimensions before and behind that one
  int64_t terms = 1;  // rows that are added up to one
  int64_t chunk = 1;  // of these, added up in one slot
  int64_t chunks = 1;

  // is_sum(dim): whether the sums have the dimension.
  template <class IsSum>
  RotaryCut(const Grid& grid, IsSum is_sum) {
    int last = grid.rank - 1;
    while (last >= 0 && !is_sum(grid.dims[last])) --last;
    for (int d = 0; d < grid.rank; ++d) {
      const auto& [size, strides] = grid.dims[d];
      if (d == last) {
        along = size;
        step = strides;
      } else {
        (d > last ? inner : is_sum(grid.dims[d]) ? kept : outer).add(size, strides);
      }
    }
    terms = outer.rows() * inner.rows();
    chunk = std::min(terms, kChunk);
    chunks = std::max<int64_t>(ceil_div(terms, kChunk), 1);
  }

  int64_t sums() const { return kept.rows() * along; }
  int64_t slots() const { return chunks > 1 ? 2 * sums() * chunks : 0; }
};

template <class T>
RotaryCut<typename RotaryGrad<T>::Grid> cut_rotary_grad(const typename RotaryGrad<T>::Grid& grid) {
  return {grid, [](const auto& dim) { return dim.strides[RotaryGrad<T>::kDcos] != 0; }};
}

}  // namespace descend::kernels
