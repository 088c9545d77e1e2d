// Scaled, masked softmax on a matrix of rows.
#pragma once

#include "kernels/rows/mask_rows.h"
#include "kernels/simd/element.h"

namespace descend::kernels {

//   z = -10000 where masked, scale * x elsewhere
//   y = exp(z - max(z)) / sum(exp(z - max(z)))
template <class T>
struct ScaledMaskedSoftmax {
  int64_t rows;
  int64_t columns;
  Rows<const T> x;
  MaskRows mask;
  double scale;
  Rows<T> y;  // may be x itself
};

template <class T>
void scaled_masked_softmax(const ScaledMaskedSoftmax<T>& problem);

}  // namespace descend::kernels
