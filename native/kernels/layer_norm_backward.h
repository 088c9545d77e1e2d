// Layer norm backward on a matrix of rows.
#pragma once

#include <cstddef>

#include "kernels/element.h"

namespace descend::kernels {

//   xhat   = (x - mean) * rstd,  g = dy * gamma
//   dx     = rstd * (g - mean(g over the row) - xhat * mean(g * xhat over the row))
//   dgamma = sum over rows of dy * xhat
//   dbeta  = sum over rows of dy
template <class T>
struct LayerNormBackward {
  int64_t rows;
  int64_t columns;
  Rows<const T> dy;
  Rows<const T> x;
  const Wide<T>* mean;       // [rows]
  const Wide<T>* rstd;       // [rows]
  ColumnParameter<T> gamma;  // [columns]
  Rows<T> dx;                // may be dy or x themselves; data null: not wanted
  ColumnSums<T> dgamma;      // layer_norm_backward_slots(...) slots
  ColumnSums<T> dbeta;       // the same
};

// How many slots of partial sums the kernel writes; a function of the shape and type alone. 0: it writes the sums
// themselves, or one slot of them.
template <class T>
int64_t layer_norm_backward_slots(int64_t rows, int64_t columns);

// Bytes of scratch that the kernel needs.
template <class T>
size_t layer_norm_backward_scratch(int64_t rows, int64_t columns);

// rows = 0 leaves sums of 0; columns = 0 does nothing.
template <class T>
void layer_norm_backward(const LayerNormBackward<T>& problem, void* scratch);

}  // namespace descend::kernels
