#include <limits>

#include "kernels/rows/moments.h"
#include "kernels/rows/norm_finish-inl.h"
#include "kernels/rows/operator.h"
#include "kernels/rows/shared-inl.h"
#include "kernels/simd/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

//   y = ((x - centre) * rstd + level) * gamma + beta
struct LayerNormProgram : Moments<> {
  enum Parameter { kGamma, kBeta, kParameters };
  enum Scalar { kEpsilon, kScalars };

  template <class T>
  static RowKernels<Wide<T>> kernels() {
    return row_kernels<LayerNormProgram, T>();
  }

  template <class V>
  static HWY_INLINE V map(const V* in, const V* column, const V* row, V*) {
    return hn::MulAdd(normalised(in, row), column[kGamma], column[kBeta]);
  }
};

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace descend::kernels::DESCEND_TARGET {
namespace {

constexpr double of_nothing[] = {0, std::numeric_limits<double>::quiet_NaN()};
constexpr auto exact_sums = sum_moments;
constexpr auto exact_statistics = exact_moments;

void exact_map(int64_t n, const double* const* in, const double* const* column, const double* numbers,
               const double* means, double* y, double* const*) {
  map_layer_norm(n, in[0], column, numbers, means, y);
}

}  // namespace

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_ROW_FORWARD(layer_norm, LayerNormProgram)
