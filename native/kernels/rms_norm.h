// RMS norm forward on a matrix of rows.
#pragma once

#include <cstddef>

#include "kernels/element.h"

namespace descend::kernels {

//   rstd = 1 / sqrt(mean(x * x over the row) + epsilon),  y = x * rstd * gamma
template <class T>
struct RmsNorm {
  int64_t rows;
  int64_t columns;
  Rows<const T> x;
  ColumnParameter<T> gamma;  // [columns]
  double epsilon;
  Rows<T> y;      // may be x itself
  Wide<T>* rstd;  // [rows]
};

// Bytes of scratch that the kernel needs, aligned to 64.
template <class T>
size_t rms_norm_scratch(int64_t rows, int64_t columns);

template <class T>
void rms_norm(const RmsNorm<T>& problem, void* scratch);

}  // namespace descend::kernels
