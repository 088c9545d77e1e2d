// Softmax and log softmax along a dimension that others lie behind, and their gradients: what a call is.
#pragma once

#include "kernels/simd/element.h"

namespace descend::kernels {

enum class SoftmaxKind : uint8_t { kSoftmax, kLogSoftmax, kSoftmaxBackward, kLogSoftmaxBackward };

constexpr bool is_backward(SoftmaxKind kind) { return kind >= SoftmaxKind::kSoftmaxBackward; }

// Matrices one after the other; the columns of a row are neighbours. Strides are in elements.
template <class T>
struct Matrices {
  T* data;
  int64_t stride, row_stride;

  Rows<T> at(int64_t matrix, int64_t column) const { return {data + matrix * stride + column, row_stride}; }
};

// The dimension's elements are a matrix's rows. Where there are so few columns that several rows are worked on as one,
// rows lie one behind the other.
template <class T>
struct SoftmaxColumns {
  int64_t matrices, rows, columns;
  Matrices<const T> in[2];  // x; or dy and y
  Matrices<T> out;          // may be any of them

  static bool joins_rows(int64_t columns) { return 2 * columns * static_cast<int64_t>(sizeof(Wide<T>)) <= 128; }
};

template <class T>
void softmax_columns(const SoftmaxColumns<T>& problem, SoftmaxKind kind);

}  // namespace descend::kernels
