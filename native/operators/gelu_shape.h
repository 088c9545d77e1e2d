// What GELU and its gradient share: products, dtypes, shapes and staging.
#pragma once

#include "kernels/elements/elements.h"
#include "operators/staging.h"

namespace descend {

inline constexpr ProductSet kGeluProducts(Product::kAtlasA3, Product::kAtlasA2Training, Product::kAtlasA2Inference,
                                          Product::kAtlasInference, Product::kAtlasTraining, Product::kAscend950,
                                          Product::kHost);
// Those of them that have BFLOAT16, and that have not.
inline constexpr ProductSet kWithBfloat16(Product::kAtlasA3, Product::kAtlasA2Training, Product::kAtlasA2Inference,
                                          Product::kAscend950);
inline constexpr ProductSet kWithoutBfloat16(Product::kAtlasInference, Product::kAtlasTraining);

inline constexpr DtypeSet kFloat16Only{Dtype::kFloat16}, kBfloat16Only{Dtype::kBfloat16};

// Checks that tensor i has a shape (161002); `rule` says which: "that of self".
Status check_gelu_shape(const Call& call, int i, const Dims& expected, const char* rule);

// Input or output i of this shape as rows, its last dimension being the columns. An input that has another shape is
// broadcast to it. One of INT32 is wanted as FLOAT or DOUBLE.
struct GeluShape {
  explicit GeluShape(const Dims& shape);
  Dims dims;
  uint64_t leading;
  int64_t rows = 1, columns = 1;
};
StagedRows stage_broadcast(const Call& call, Plan& plan, int i, const GeluShape& shape, kernels::Element wanted);

}  // namespace descend
