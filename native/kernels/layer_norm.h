// Layer norm forward on a matrix of rows.
#pragma once

#include <cstddef>

#include "kernels/element.h"

namespace descend::kernels {

//   mean, rstd = 1 / sqrt(variance + epsilon) of each row,  y = (x - mean) * rstd * gamma + beta
template <class T>
struct LayerNorm {
  int64_t rows;
  int64_t columns;
  Rows<const T> x;
  ColumnParameter<T> gamma;  // [columns]
  ColumnParameter<T> beta;
  double epsilon;
  Rows<T> y;      // may be x itself
  Wide<T>* mean;  // [rows]; null: not wanted
  Wide<T>* rstd;  // [rows]; null: not wanted
};

// Bytes of scratch that the kernel needs, aligned to 64.
template <class T>
size_t layer_norm_scratch(int64_t rows, int64_t columns);

// A row without columns has mean 0 and rstd NaN.
template <class T>
void layer_norm(const LayerNorm<T>& problem, void* scratch);

}  // namespace descend::kernels
