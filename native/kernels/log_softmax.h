// Log softmax on a matrix of rows.
#pragma once

#include "kernels/simd/element.h"

namespace descend::kernels {

//   y = (x - max(x)) - log(sum(exp(x - max(x))))
template <class T>
struct LogSoftmax {
  int64_t rows, columns;
  Rows<const T> x;
  Rows<T> y;  // may be x itself
};

template <class T>
void log_softmax(const LogSoftmax<T>& problem);

}  // namespace descend::kernels
