#include <algorithm>
#include <limits>

#include "kernels/rows/moments.h"
#include "kernels/rows/norm_finish-inl.h"
#include "kernels/rows/operator.h"
#include "kernels/rows/shared-inl.h"
#include "kernels/simd/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

//   x = x1 + x2,  rstd = 1 / sqrt(mean(x * x) + epsilon), by RootMeanSquare,  y = x * rstd * gamma
// y is of the sum as the arithmetic has it: x is rounded once to the elements' type, and so is y.
struct AddRmsNormProgram : RootMeanSquare {
  enum Input { kX1, kX2, kInputs };
  enum Output { kSum, kY, kOutputs };

  template <class T>
  static RowKernels<Wide<T>> kernels() {
    return row_kernels<AddRmsNormProgram, T>();
  }

  template <class V>
  static HWY_INLINE void combine(V* in, const V*) {
    in[kX] = hn::Add(in[kX1], in[kX2]);
  }

  template <class V>
  static HWY_INLINE void map(const V* in, const V* column, const V* row, V*, V* out) {
    out[kSum] = in[kX];
    out[kY] = hn::Mul(normalised(in, row), column[kGamma]);
  }
};

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace descend::kernels::DESCEND_TARGET {
namespace {

constexpr double of_nothing[] = {std::numeric_limits<double>::quiet_NaN()};
constexpr auto exact_sums = sum_squares;
constexpr auto exact_statistics = exact_rstd;

void exact_combine(int64_t n, double* const* in, const double*) {
  for (int64_t c = 0; c < n; ++c) in[0][c] += in[1][c];
}

void exact_map(int64_t n, const double* const* in, const double* const* column, const double* epsilon,
               const double* means, double* x, double* const*) {
  std::copy_n(in[0], n, x);
  map_rms_norm(n, in[0], column, epsilon, means, x + kExactColumns);
}

}  // namespace

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_ROW_FORWARD(add_rms_norm, AddRmsNormProgram, .exact_combine = exact_combine)
