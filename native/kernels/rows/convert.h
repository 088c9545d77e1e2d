// Conversions between element types, strided copies, and the sum of partial sums: the steps around the kernels.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/simd/element.h"

namespace descend::kernels {

// A strided n-dimensional operand; strides in elements, any sign. Rank 0 is one element.
struct Strided {
  static constexpr int kMaxRank = 8;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{};
  std::array<int64_t, kMaxRank> from_stride{};
  std::array<int64_t, kMaxRank> to_stride{};
};

// to[i...] = from[i...] converted, one rounding (to nearest even), for any pair of element types. Exact where `to` is
// wider.
void convert(const Strided& extent, Element from_type, const void* from, Element to_type, void* to);

// The same of n neighbours, on this thread.
void convert_span(Element from_type, const void* from, Element to_type, void* to, int64_t n);

// out[c * out_stride] = slots[0][c] + slots[1][c] + ..., added in that order in double, rounded once to the output's
// type.
void sum_slots(int64_t slots, int64_t columns, const double* partial, Element out_type, void* out, int64_t out_stride);

}  // namespace descend::kernels
