#include <limits>

#include "kernels/moments.h"
#include "kernels/rows/operator.h"

#define HWY_TARGET_INCLUDE "kernels/layer_norm.cpp"
#include "kernels/dispatch.h"
#include "kernels/norm_finish-inl.h"
#include "kernels/rows/shared-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

//   y = ((x - centre) * rstd + level) * gamma + beta
struct LayerNormProgram : MomentsProgram {
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

#if HWY_ONCE
namespace descend::kernels {
namespace {

constexpr double of_nothing[] = {0, std::numeric_limits<double>::quiet_NaN()};
constexpr auto exact_sums = sum_moments;
constexpr auto exact_statistics = exact_moments;

void exact_map(int64_t n, const double* const* in, const double* const* column, const double* numbers,
               const double* means, double* y, double* const*) {
  double of_row[2];
  exact_moments(numbers, means, of_row);
  for (int64_t c = 0; c < n; ++c) y[c] = (in[0][c] - of_row[0]) * of_row[1] * column[0][c] + column[1][c];
}

}  // namespace

DESCEND_ROW_FORWARD(layer_norm, LayerNormProgram)

}  // namespace descend::kernels
#endif  // HWY_ONCE
