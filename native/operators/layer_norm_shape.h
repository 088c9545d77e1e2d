// What layer norm and its gradient share: the checks of normalizedShape and the small tensors against the input, the
// rows of the dtype table, the products.
#pragma once

#include "operators/staging.h"

namespace descend {

// The numbers of the parameters that both operators have.
struct LayerNormParameters {
  int input, normalized_shape, weight, bias, mean, rstd;
};

// Checks input's rank, normalizedShape, and the shapes of weight, bias, mean and rstd if given (161002).
Status check_layer_norm_shape(const Call& call, const LayerNormParameters& at, RowShape* shape);

// How many of input's last dimensions normalizedShape has, for infer, where neither is checked yet.
uint64_t normalized_dimensions(const Call& call, int input, int normalized_shape);

// The documents' combinations and that of `host`: dtypes of input, of a parameter, and of tensors that take any.
struct LayerNormDtypes {
  ProductSet products;
  DtypeSet input, parameter, any;
};
const std::vector<LayerNormDtypes>& layer_norm_dtypes();

inline constexpr ProductSet kLayerNormProducts(Product::kAtlasA3, Product::kAtlasA2Training, Product::kAtlasA2Inference,
                                               Product::kAtlasInference, Product::kAtlasTraining, Product::kAscend950,
                                               Product::kHost);

}  // namespace descend
