// RMS norm backward on a matrix of rows.
#pragma once

#include <cstddef>

#include "kernels/element.h"

namespace descend::kernels {

//   xhat = x * rstd,  g = dy * gamma
//   dx   = rstd * (g - xhat * mean(g * xhat over the row))
//   dgamma = sum over rows of dy * xhat
template <class T>
struct RmsNormGrad {
  int64_t rows;
  int64_t columns;
  Rows<const T> dy;
  Rows<const T> x;
  const Wide<T>* rstd;       // [rows]
  ColumnParameter<T> gamma;  // [columns]
  Rows<T> dx;                // may be dy or x themselves
  ColumnSums<T> dgamma;      // rms_norm_grad_slots(...) slots
};

// How many slots of partial sums the kernel writes; a function of the shape and type alone. 0: it writes the sums
// themselves, or one slot of them.
template <class T>
int64_t rms_norm_grad_slots(int64_t rows, int64_t columns);

// Bytes of scratch that the kernel needs.
template <class T>
size_t rms_norm_grad_scratch(int64_t rows, int64_t columns);

// rows = 0 leaves sums of 0; columns = 0 does nothing.
template <class T>
void rms_norm_grad(const RmsNormGrad<T>& problem, void* scratch);

}  // namespace descend::kernels
