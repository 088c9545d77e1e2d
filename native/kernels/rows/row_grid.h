// Rows that several dimensions count, in several tensors at once, each with strides of its own.
#pragma once

#include <array>
#include <cstdint>

namespace descend::kernels {

// What the dimensions of kTensors tensors that count rows have in common: their sizes. A tensor that is broadcast along
// one has the stride 0 there.
template <int kTensors>
struct RowGrid {
  static constexpr int kMost = 8;
  using Strides = std::array<int64_t, kTensors>;

  struct Dim {
    int64_t size;
    Strides strides;
  };
  int rank = 0;
  std::array<Dim, kMost> dims{};

  int64_t rows() const {
    int64_t product = 1;
    for (int d = 0; d < rank; ++d) product *= dims[d].size;
    return product;
  }

  // Adds a dimension behind the others. It becomes a part of the last where all tensors go on evenly.
  void add(int64_t size, const Strides& strides) {
    if (size == 1) return;
    if (rank > 0 && goes_on(dims[rank - 1], size, strides)) {
      dims[rank - 1] = {dims[rank - 1].size * size, strides};
    } else {
      dims[rank++] = {size, strides};
    }
  }

 private:
  static bool goes_on(const Dim& outer, int64_t size, const Strides& strides) {
    for (int t = 0; t < kTensors; ++t) {
      if (outer.strides[t] != size * strides[t]) return false;
    }
    return true;
  }
};

// Where a row begins in each tensor, one row after the other.
template <int kTensors>
class RowCursor {
 public:
  RowCursor(const RowGrid<kTensors>& grid, int64_t row) : grid_(grid) {
    for (int d = grid.rank - 1; d >= 0; --d) {
      index_[d] = row % grid.dims[d].size;
      row /= grid.dims[d].size;
      go(d, index_[d]);
    }
  }

  // How many rows there are from here on that step() leads along, this one included.
  int64_t left() const {
    const int last = grid_.rank - 1;
    return last < 0 ? 1 : grid_.dims[last].size - index_[last];
  }

  typename RowGrid<kTensors>::Strides step() const {
    return grid_.rank > 0 ? grid_.dims[grid_.rank - 1].strides : typename RowGrid<kTensors>::Strides{};
  }

  // By so many rows, at most left().
  void go_on(int64_t rows) {
    for (int d = grid_.rank - 1; d >= 0; --d, rows = 1) {
      go(d, rows);
      index_[d] += rows;
      if (index_[d] < grid_.dims[d].size) return;
      go(d, -index_[d]);
      index_[d] = 0;
    }
  }
  void next() { go_on(1); }

  const typename RowGrid<kTensors>::Strides& at() const { return at_; }

 private:
  void go(int d, int64_t steps) {
    for (int t = 0; t < kTensors; ++t) at_[t] += steps * grid_.dims[d].strides[t];
  }

  const RowGrid<kTensors>& grid_;
  std::array<int64_t, RowGrid<kTensors>::kMost> index_;
  typename RowGrid<kTensors>::Strides at_{};
};

}  // namespace descend::kernels
