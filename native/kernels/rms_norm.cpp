#include <limits>

#include "kernels/rows/moments.h"
#include "kernels/rows/norm_finish-inl.h"
#include "kernels/rows/operator.h"
#include "kernels/rows/shared-inl.h"
#include "kernels/simd/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

//   rstd = 1 / sqrt(mean(x * x) + epsilon), by RootMeanSquare,  y = x * rstd * gamma
struct RmsNormProgram : RootMeanSquare {
  template <class T>
  static RowKernels<Wide<T>> kernels() {
    return row_kernels<RmsNormProgram, T>();
  }

  template <class V>
  static HWY_INLINE V map(const V* in, const V* column, const V* row, V*) {
    return hn::Mul(normalised(in, row), column[kGamma]);
  }
};

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace descend::kernels::DESCEND_TARGET {
namespace {

constexpr double of_nothing[] = {std::numeric_limits<double>::quiet_NaN()};
constexpr auto exact_sums = sum_squares;
constexpr auto exact_statistics = exact_rstd;

void exact_map(int64_t n, const double* const* in, const double* const* column, const double* epsilon,
               const double* means, double* y, double* const*) {
  map_rms_norm(n, in[0], column, epsilon, means, y);
}

}  // namespace

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_ROW_FORWARD(rms_norm, RmsNormProgram)
