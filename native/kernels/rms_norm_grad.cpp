#include "kernels/rows/norm_finish-inl.h"
#include "kernels/rows/operator.h"
#include "kernels/rows/shared-inl.h"
#include "kernels/simd/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

//   slope = rstd^3 * mean(dy * gamma * x)
//   dx = rstd * dy * gamma - slope * x,  dgamma = sum over rows of dy * rstd * x
struct RmsNormGradProgram {
  enum Input { kDy, kX, kInputs };
  enum Parameter { kGamma, kParameters };
  enum Term { kRstd, kNumbers, kSlope = kNumbers, kTerms };
  enum Sum { kSums = 1, kColumnSums = 1 };
  static constexpr int kScalars = 0, kStatistics = 0;
  static constexpr int kRowsAtOnce = kHasVectors ? 2 : 1;
  static constexpr int kRowsMapped = kHasVectors ? 2 : 1;
  static constexpr bool kFoldsInDouble = true;
  static constexpr Nan kNan = Nan::kOfBfloat16;  // rows with any are computed in double

  template <class T>
  static RowKernels<Wide<T>> kernels() {
    return row_kernels<RmsNormGradProgram, T>();
  }

  template <class V>
  static HWY_INLINE void sum(const V* in, const V* column, const V*, V* sums) {
    sums[0] = hn::MulAdd(hn::Mul(in[kDy], column[kGamma]), in[kX], sums[0]);
  }

  template <class W, class V>
  static HWY_INLINE auto finish(const V* means, const double*, V* row) {
    return norm_slope<W>(means[0], row[kRstd], row[kSlope]);
  }

  template <class V>
  static HWY_INLINE V map(const V* in, const V* column, const V* row, V* sums) {
    const V scaled = hn::Mul(in[kDy], row[kRstd]);
    sums[0] = hn::MulAdd(scaled, in[kX], sums[0]);
    return hn::MulSub(scaled, column[kGamma], hn::Mul(in[kX], row[kSlope]));
  }
};

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace descend::kernels::DESCEND_TARGET {
namespace {

void exact_sums(int64_t n, const double* const* in, const double* const* column, const double* row, double* sums) {
  for (int64_t c = 0; c < n; ++c) sums[0] += in[0][c] * column[0][c] * (in[1][c] * row[0]);
}

void exact_map(int64_t n, const double* const* in, const double* const* column, const double* row, const double* means,
               double* dx, double* const* dgamma) {
  for (int64_t c = 0; c < n; ++c) {
    const double dy = in[0][c], xhat = in[1][c] * row[0];
    dgamma[0][c] = dy * xhat;
    dx[c] = row[0] * (dy * column[0][c] - xhat * means[0]);
  }
}

}  // namespace

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_ROW_GRADIENT(rms_norm_grad, RmsNormGradProgram)
