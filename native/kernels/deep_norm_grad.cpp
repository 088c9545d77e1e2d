#include "kernels/rows/norm_finish-inl.h"
#include "kernels/rows/operator.h"
#include "kernels/rows/shared-inl.h"
#include "kernels/simd/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Layer norm's gradient of alpha * x + gx:
//   g = dy * gamma, xc = alpha * x + gx - mean, slope = rstd^3 * mean(g * xc), offset = rstd * mean(g)
//   dgx = rstd * dy * gamma - (slope * xc + offset),  dx = alpha * dgx
//   dgamma = sum over rows of dy * rstd * xc,  dbeta = that of dy
struct DeepNormGradProgram {
  enum Input { kDy, kX, kGx, kInputs };
  enum Output { kDx, kDgx, kOutputs };
  enum Parameter { kGamma, kParameters };
  enum Term { kMean, kRstd, kAlpha, kNumbers, kSlope = kNumbers, kOffset, kTerms };
  enum Sum { kProducts, kG, kSums };
  enum ColumnSum { kDbeta, kDgamma, kColumnSums };
  static constexpr int kScalars = 0, kStatistics = 0, kRowsAtOnce = 1, kRowsMapped = kHasVectors ? 2 : 1;
  static constexpr bool kFoldsInDouble = true;
  static constexpr Nan kNan = Nan::kOfBfloat16;  // rows with any are computed in double

  template <class T>
  static RowKernels<Wide<T>> kernels() {
    return row_kernels<DeepNormGradProgram, T>();
  }

  template <class V>
  static HWY_INLINE V centred(const V* in, const V* row) {
    return hn::MulAdd(row[kAlpha], in[kX], hn::Sub(in[kGx], row[kMean]));
  }

  template <class V>
  static HWY_INLINE void sum(const V* in, const V* column, const V* row, V* sums) {
    const V g = hn::Mul(in[kDy], column[kGamma]);
    sums[kProducts] = hn::MulAdd(g, centred(in, row), sums[kProducts]);
    sums[kG] = hn::Add(sums[kG], g);
  }

  template <class W, class V>
  static HWY_INLINE auto finish(const V* means, const double*, V* row) {
    const auto holds = norm_slope<W>(means[kProducts], row[kRstd], row[kSlope]);
    row[kOffset] = hn::Mul(means[kG], row[kRstd]);
    const auto most = splat(static_cast<double>(std::numeric_limits<W>::max()));
    return hn::And(hn::And(holds, norm_near<W>(row[kAlpha])), hn::Le(hn::Abs(row[kOffset]), most));
  }

  template <class V>
  static HWY_INLINE void map(const V* in, const V* column, const V* row, V* sums, V* out) {
    const V xc = centred(in, row), scaled = hn::Mul(in[kDy], row[kRstd]);
    sums[kDbeta] = hn::Add(sums[kDbeta], in[kDy]);
    sums[kDgamma] = hn::MulAdd(scaled, xc, sums[kDgamma]);
    out[kDgx] = hn::MulSub(scaled, column[kGamma], hn::MulAdd(xc, row[kSlope], row[kOffset]));
    out[kDx] = hn::Mul(row[kAlpha], out[kDgx]);
  }

  // In a row of one element g is its own mean. The two must cancel without a rest: dgx is exactly 0 where xc is.
  template <class V>
  static HWY_INLINE void map_single(const V* in, const V* row, V* out) {
    out[kDgx] = hn::NegMulAdd(centred(in, row), row[kSlope], hn::Zero(hn::DFromV<V>()));
    out[kDx] = hn::Mul(row[kAlpha], out[kDgx]);
  }
};

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace descend::kernels::DESCEND_TARGET {
namespace {

void exact_sums(int64_t n, const double* const* in, const double* const* column, const double* row, double* sums) {
  for (int64_t c = 0; c < n; ++c) {
    const double g = in[0][c] * column[0][c];
    sums[0] += g * ((row[2] * in[1][c] + in[2][c] - row[0]) * row[1]);
    sums[1] += g;
  }
}

void exact_map(int64_t n, const double* const* in, const double* const* column, const double* row, const double* means,
               double* dx, double* const* sums) {
  for (int64_t c = 0; c < n; ++c) {
    const double dy = in[0][c], xhat = (row[2] * in[1][c] + in[2][c] - row[0]) * row[1];
    const double dgx = dx[c + kExactColumns] = row[1] * (dy * column[0][c] - means[1] - xhat * means[0]);
    dx[c] = row[2] * dgx;
    sums[0][c] = dy;
    sums[1][c] = dy * xhat;
  }
}

}  // namespace

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_ROW_GRADIENT(deep_norm_grad, DeepNormGradProgram)
