#include <algorithm>
#include <limits>

#include "kernels/rows/moments.h"
#include "kernels/rows/norm_finish-inl.h"
#include "kernels/rows/operator.h"
#include "kernels/rows/shared-inl.h"
#include "kernels/simd/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Layer norm of x1 + x2 + bias, and that. y is of the sum as the arithmetic has it: each is rounded once.
template <bool kHasBias>
struct AddLayerNormProgram : Moments<> {
  enum Input { kX1, kX2, kBias, kInputs = kHasBias ? 3 : 2 };
  enum Output { kSum, kY, kOutputs };
  enum Parameter { kGamma, kBeta, kParameters };
  enum Scalar { kEpsilon, kScalars };

  template <class T>
  static RowKernels<Wide<T>> kernels() {
    return row_kernels<AddLayerNormProgram, T>();
  }

  template <class V>
  static HWY_INLINE void combine(V* in, const V*) {
    in[kX1] = hn::Add(in[kX1], in[kX2]);
    if constexpr (kHasBias) in[kX1] = hn::Add(in[kX1], in[kBias]);
  }

  template <class V>
  static HWY_INLINE void map(const V* in, const V* column, const V* row, V*, V* out) {
    out[kSum] = in[kX1];
    out[kY] = hn::MulAdd(normalised(in, row), column[kGamma], column[kBeta]);
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
               const double* means, double* x, double* const*) {
  std::copy_n(in[0], n, x);
  map_layer_norm(n, in[0], column, numbers, means, x + kExactColumns);
}

template <int kTerms>
void exact_sum(int64_t n, double* const* in, const double*) {
  for (int i = 1; i < kTerms; ++i) {
    for (int64_t c = 0; c < n; ++c) in[0][c] += in[i][c];
  }
}

}  // namespace

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_ROW_FORWARD(add_layer_norm, AddLayerNormProgram<false>, .exact_combine = exact_sum<2>)
DESCEND_ROW_FORWARD(add_bias_layer_norm, AddLayerNormProgram<true>, .exact_combine = exact_sum<3>)
