// Backward of the scaled, masked softmax on a matrix of rows.
#pragma once

#include "kernels/rows/mask_rows.h"
#include "kernels/simd/element.h"

namespace descend::kernels {

//   dx = 0                                         where masked
//   dx = scale * (dy * y - y * sum(dy * y))        elsewhere; the sum runs over the whole row
template <class T>
struct ScaledMaskedSoftmaxBackward {
  int64_t rows;
  int64_t columns;
  Rows<const T> dy;
  Rows<const T> y;
  MaskRows mask;
  double scale;
  Rows<T> dx;  // may be dy or y themselves
};

// Bytes of scratch that the kernel needs, aligned to 64.
template <class T>
size_t scaled_masked_softmax_backward_scratch(int64_t rows, int64_t columns);

template <class T>
void scaled_masked_softmax_backward(const ScaledMaskedSoftmaxBackward<T>& problem, void* scratch);

}  // namespace descend::kernels
