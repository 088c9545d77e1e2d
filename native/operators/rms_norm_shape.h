// What the RMS norms and their gradient share: the checks of gamma and rstd against x, and the rows of the dtype table.
#pragma once

#include "operators/row_operator.h"

namespace descend {

// Checks ranks and shapes of x, gamma and rstd (561002).
Status check_rms_norm_shape(const Call& call, int x, int gamma, int rstd, RowShape* shape);

// The forwards of one input: their parameters in order, what these are to the program, and the checks of all but
// dtypes.
namespace rms_norm_parameters {
enum { kX, kGamma, kEpsilon, kY, kRstd };
}
RowOperands rms_norm_operands();
Status check_rms_norm(const Call& call, RowShape* shape);

// The documents' combinations of dtypes of x, rstd and gamma with their products, and those of `host`.
struct RmsNormDtypes {
  ProductSet products;
  DtypeSet x, rstd, gamma;
};
const std::vector<RmsNormDtypes>& rms_norm_dtypes();

// The products that have these operators: with BFLOAT16, of Huawei's, all.
inline constexpr ProductSet kRmsNormBfloat16(Product::kAtlasA3, Product::kAtlasA2Training, Product::kAtlasA2Inference,
                                             Product::kAscend950);
inline constexpr ProductSet kRmsNormHuawei = kRmsNormBfloat16 | ProductSet(Product::kAtlasInference);
inline constexpr ProductSet kRmsNormProducts = kRmsNormHuawei | ProductSet(Product::kHost);

}  // namespace descend
