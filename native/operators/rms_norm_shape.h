// What RMS norm and its gradient share: the checks of gamma and rstd against x, and the rows of the dtype table.
#pragma once

#include "operators/operator.h"

namespace descend {

// x as a matrix: gamma has its last dimensions, rstd has an element for each row.
struct RmsNormShape {
  uint64_t leading = 0;  // dimensions of x that count rows
  int64_t rows = 0;
  int64_t columns = 0;
};

// Checks ranks and shapes of x, gamma and rstd (561002).
Status check_rms_norm_shape(const Call& call, int x, int gamma, int rstd, RmsNormShape* shape);

// The documents' combinations of dtypes of x, rstd and gamma with their products, and those of `host`.
struct RmsNormDtypes {
  ProductSet products;
  DtypeSet x, rstd, gamma;
};
const std::vector<RmsNormDtypes>& rms_norm_dtypes();

inline constexpr ProductSet kRmsNormProducts(Product::kAtlasA3, Product::kAtlasA2Training, Product::kAtlasA2Inference,
                                             Product::kAtlasInference, Product::kAscend950, Product::kHost);

}  // namespace descend
