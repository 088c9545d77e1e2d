// NSA compression: windows of tokens, each reduced to one by a weight for every position and head.
#pragma once

#include "kernels/nsa/windows.h"
#include "kernels/simd/element.h"

namespace descend::kernels {

//   output[c, n, :] = sum over w of weight[w, n] * input[start(c) + w, n, :]
template <class T>
struct NsaCompress {
  int64_t blocks;  // windows of all sequences
  int64_t heads;
  int64_t depth;  // the head size
  Windows windows;
  Rows<const T> input;    // a row is heads x depth elements
  const Wide<T>* weight;  // [width][heads]
  Rows<T> output;         // may be input itself
};

template <class T>
void nsa_compress(const NsaCompress<T>& problem);

}  // namespace descend::kernels
