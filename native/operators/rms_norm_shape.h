// What RMS norm and its gradient share: the checks of gamma and rstd against x, and the rows of the dtype table.
#pragma once

#include "operators/staging.h"

namespace descend {

// Checks ranks and shapes of x, gamma and rstd (561002).
Status check_rms_norm_shape(const Call& call, int x, int gamma, int rstd, RowShape* shape);

// The documents' combinations of dtypes of x, rstd and gamma with their products, and those of `host`.
struct RmsNormDtypes {
  ProductSet products;
  DtypeSet x, rstd, gamma;
};
const std::vector<RmsNormDtypes>& rms_norm_dtypes();

inline constexpr ProductSet kRmsNormProducts(Product::kAtlasA3, Product::kAtlasA2Training, Product::kAtlasA2Inference,
                                             Product::kAtlasInference, Product::kAscend950, Product::kHost);

}  // namespace descend
