// Backward of NSA compression: windows of tokens, each reduced to one by a weight for every position and head.
#pragma once

#include "kernels/nsa/windows.h"
#include "kernels/simd/element.h"

namespace descend::kernels {

//   input_grad[t, n, :] = sum over windows c and positions w with start(c) + w = t of weight[w, n] * output_grad[c, n,
//   :] weight_grad[w, n]   = sum over c, d of output_grad[c, n, d] * input[start(c) + w, n, d]
template <class T>
struct NsaCompressGrad {
  int64_t tokens;
  int64_t heads;
  int64_t depth;  // the head size
  Windows windows;
  Rows<const T> output_grad;  // a row is heads x depth elements
  Rows<const T> input;
  const Wide<T>* weight;  // [width][heads]
  Rows<T> input_grad;     // may be input or output_grad themselves
  double* weight_slots;   // [nsa_compress_grad_slots(...)][width][heads]: partial sums; add them with sum_slots
};

// How many slots of partial sums the kernel writes; a function of the shape and type alone, at least 1.
template <class T>
int64_t nsa_compress_grad_slots(int64_t tokens, int64_t heads, int64_t depth, int64_t width);

template <class T>
void nsa_compress_grad(const NsaCompressGrad<T>& problem);

}  // namespace descend::kernels
