// What SwiGLU and its gradient share: how x is cut in two, products and dtypes.
#pragma once

#include <vector>

#include "kernels/simd/element.h"
#include "operators/operator.h"

namespace descend {

// The numbers of the parameters that both operators have.
struct SwiGluParameters {
  int x;
  int dim;
  int half;          // the tensor of half of x's shape
  int whole;         // one of x's shape; x itself if there is no other
  bool takes_empty;  // whether the page allows tensors without elements
};

// x as rows, each of which has the elements of its first half, then those of the second.
struct HalvedShape {
  uint64_t leading;  // dimensions that count rows
  int64_t rows;
  int64_t columns;  // of a half
};

inline constexpr ProductSet kSwiGluProducts(Product::kAtlasA3, Product::kAtlasA2Training, Product::kAtlasA2Inference,
                                            Product::kAtlasInference, Product::kAscend950, Product::kHost);

// All `tensors` tensors have one dtype; on host any.
std::vector<DtypeRow> swi_glu_dtypes(size_t tensors);

// The shape of half of x; as x where dim is out of range.
Dims half_of_x(const Call& call, const SwiGluParameters& p);

// Checks rank, dim and shapes (161002).
Status check_swi_glu(const Call& call, const SwiGluParameters& p, HalvedShape* shape);

// The second half of rows that begin with the first.
template <class T>
kernels::Rows<T> second_half(const kernels::Rows<T>& rows, int64_t columns) {
  return {rows.data + columns, rows.stride};
}

}  // namespace descend
