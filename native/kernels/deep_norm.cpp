#include <cmath>
#include <limits>

#include "kernels/rows/moments.h"
#include "kernels/rows/norm_finish-inl.h"
#include "kernels/rows/operator.h"
#include "kernels/rows/shared-inl.h"
#include "kernels/simd/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Layer norm of alpha * x + gx.
struct DeepNormProgram : Moments<1> {
  enum Input { kX, kGx, kInputs };
  enum Parameter { kGamma, kBeta, kParameters };
  enum Number { kAlpha };
  enum Scalar { kEpsilon, kScalars };

  template <class T>
  static RowKernels<Wide<T>> kernels() {
    return row_kernels<DeepNormProgram, T>();
  }

  template <class V>
  static HWY_INLINE void combine(V* in, const V* row) {
    in[kX] = hn::MulAdd(row[kAlpha], in[kX], in[kGx]);
  }

  template <class W, class V>
  static HWY_INLINE auto finish(const V* means, const double* epsilon, V* row) {
    return hn::And(Moments::finish<W>(means, epsilon, row), norm_near<W>(row[kAlpha]));
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

// Before epsilon is alpha.
void exact_statistics(const double* numbers, const double* means, double* statistics) {
  exact_moments(numbers + 1, means, statistics);
}

void exact_map(int64_t n, const double* const* in, const double* const* column, const double* numbers,
               const double* means, double* y, double* const*) {
  map_layer_norm(n, in[0], column, numbers + 1, means, y);
}

void exact_combine(int64_t n, double* const* in, const double* numbers) {
  for (int64_t c = 0; c < n; ++c) in[0][c] = std::fma(numbers[0], in[0][c], in[1][c]);
}

}  // namespace

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_ROW_FORWARD(deep_norm, DeepNormProgram, .exact_combine = exact_combine)
