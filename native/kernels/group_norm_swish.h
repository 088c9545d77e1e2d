// Group norm + swish forward.
#pragma once

#include <cstddef>

#include "kernels/groups/group_cut.h"
#include "kernels/simd/element.h"

namespace descend::kernels {

// Elements of short channels that are worked on at a time.
inline constexpr int64_t kForwardTile = 512;

//   mean, rstd = 1 / sqrt(variance + epsilon) of each group,  z = (x - mean) * rstd * gamma + beta
//   y = activate ? z * sigmoid(s * z) : z
template <class T>
struct GroupNormSwish {
  GroupShape shape;
  Rows<const T> x;       // a row is a sample
  const Wide<T>* gamma;  // [channels]
  const Wide<T>* beta;   // [channels]
  double epsilon;
  bool activate;
  Wide<T> scale;  // s
  Rows<T> y;      // may be x itself
  Wide<T>* mean;  // [samples, groups]
  Wide<T>* rstd;  // [samples, groups]
};

// Bytes of scratch that the kernel needs, aligned to 64.
template <class T>
size_t group_norm_swish_scratch(const GroupShape& shape);

// A group without elements has mean 0 and rstd NaN.
template <class T>
void group_norm_swish(const GroupNormSwish<T>& problem, void* scratch);

}  // namespace descend::kernels
