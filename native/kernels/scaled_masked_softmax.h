// Scaled, masked softmax on a matrix of rows.
#pragma once

#include "kernels/element.h"
#include "kernels/mask_rows.h"

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

// Whether its rows lie one behind the other without gaps.
template <class T>
bool has_no_gaps(const ScaledMaskedSoftmax<T>& p) {
  return p.x.stride == p.columns && p.y.stride == p.columns;
}

template <class T>
void scaled_masked_softmax(const ScaledMaskedSoftmax<T>& problem);

}  // namespace descend::kernels
