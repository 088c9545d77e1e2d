// What layer norm and its gradient share: how normalizedShape and the small tensors fit the input, the rows of the
// dtype table, the products.
#pragma once

#include <algorithm>

#include "operators/operator.h"
#include "operators/staging.h"

namespace descend {

// input seen as a matrix: normalizedShape is its last dimensions, the others count the rows.
struct LayerNormShape {
  uint64_t leading = 0;  // dimensions of input that count rows
  int64_t rows = 0;
  int64_t columns = 0;
};

// Where an operator has the parameters that both have.
struct LayerNormParameters {
  int input, normalized_shape, weight, bias, mean, rstd;
};

// input's rank, normalizedShape, and the shapes of weight, bias, mean and rstd where they are given (161002).
Status check_layer_norm_shape(const Call& call, const LayerNormParameters& at, LayerNormShape* shape);

// Tensor i has the shape of tensor `other` (161002).
Status check_layer_norm_same_shape(const Call& call, int i, int other);

// How many of input's last dimensions normalizedShape names; for infer, which sees them unchecked.
uint64_t normalized_dimensions(const Call& call, int input, int normalized_shape);

// weight or bias; where it is null, `columns` times what it then stands for.
template <class T>
StagedParameter<T> stage_parameter(const Call& call, Plan& plan, int i, int64_t columns, int missing) {
  using W = kernels::Wide<T>;
  if (call.given(i)) return stage_column_parameter<T>(call, plan, i);
  const Place same = plan.scratch(columns, sizeof(W));
  plan.step("fill", 1.0 * columns * sizeof(W),
            [=](const Addresses& addresses) { std::fill_n(addresses.at<W>(same), columns, static_cast<W>(missing)); });
  return {same, false};
}

// The documents' combinations and that of `host`: the dtypes of input, of a parameter, and of whatever goes with any.
struct LayerNormDtypes {
  ProductSet products;
  DtypeSet input, parameter, any;
};
const std::vector<LayerNormDtypes>& layer_norm_dtypes();

inline constexpr ProductSet kLayerNormProducts(Product::kAtlasA3, Product::kAtlasA2Training, Product::kAtlasA2Inference,
                                               Product::kAtlasInference, Product::kAtlasTraining, Product::kAscend950,
                                               Product::kHost);

}  // namespace descend
