#include "kernels/rows/operator.h"

#define HWY_TARGET_INCLUDE "kernels/layer_norm_backward.cpp"
#include "kernels/dispatch.h"
#include "kernels/norm_finish-inl.h"
#include "kernels/rows/shared-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

//   g = dy * gamma, xc = x - mean
//   slope = rstd^3 * mean(g * xc),  offset = rstd * mean(g)
//   dx = rstd * dy * gamma - (slope * xc + offset),  dgamma = sum over rows of dy * rstd * xc,  dbeta = that of dy
struct LayerNormBackwardProgram {
  enum Input { kDy, kX, kInputs };
  enum Parameter { kGamma, kParameters };
  enum Term { kMean, kRstd, kNumbers, kSlope = kNumbers, kOffset, kTerms };
  enum Sum { kGx, kG, kSums, kColumnSums = kSums };
  static constexpr int kScalars = 0, kStatistics = 0;
  static constexpr int kRowsAtOnce = HWY_TARGET == HWY_AVX3 ? 2 : 1;
  static constexpr int kRowsMapped = kHasVectors ? 2 : 1;
  static constexpr bool kFoldsInDouble = true;
  static constexpr Nan kNan = Nan::kOfBfloat16;  // rows with any are computed in double

  template <class T>
  static RowKernels<Wide<T>> kernels() {
    return row_kernels<LayerNormBackwardProgram, T>();
  }

  template <class V>
  static HWY_INLINE void sum(const V* in, const V* column, const V* row, V* sums) {
    const V g = hn::Mul(in[kDy], column[kGamma]);
    sums[kGx] = hn::MulAdd(g, hn::Sub(in[kX], row[kMean]), sums[kGx]);
    sums[kG] = hn::Add(sums[kG], g);
  }

  template <class W, class V>
  static HWY_INLINE auto finish(const V* means, const double*, V* row) {
    const auto holds = norm_slope<W>(means[kGx], row[kRstd], row[kSlope]);
    row[kOffset] = hn::Mul(means[kG], row[kRstd]);
    return hn::And(holds, hn::Le(hn::Abs(row[kOffset]), splat(static_cast<double>(std::numeric_limits<W>::max()))));
  }

  template <class V>
  static HWY_INLINE V map(const V* in, const V* column, const V* row, V* sums) {
    const V xc = hn::Sub(in[kX], row[kMean]), scaled = hn::Mul(in[kDy], row[kRstd]);
    sums[0] = hn::MulAdd(scaled, xc, sums[0]);
    sums[1] = hn::Add(sums[1], in[kDy]);
    return hn::MulSub(scaled, column[kGamma], hn::MulAdd(xc, row[kSlope], row[kOffset]));
  }

  // In a row of one element g is its own mean. The two must cancel without a rest: dx is exactly 0 where xc is.
  template <class V>
  static HWY_INLINE V map_single(const V* in, const V* row) {
    return hn::NegMulAdd(hn::Sub(in[kX], row[kMean]), row[kSlope], hn::Zero(hn::DFromV<V>()));
  }
};

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace descend::kernels {
namespace {

void exact_sums(int64_t n, const double* const* in, const double* const* column, const double* row, double* sums) {
  for (int64_t c = 0; c < n; ++c) {
    const double g = in[0][c] * column[0][c];
    sums[0] += g * ((in[1][c] - row[0]) * row[1]);
    sums[1] += g;
  }
}

void exact_map(int64_t n, const double* const* in, const double* const* column, const double* row, const double* means,
               double* dx, double* const* sums) {
  for (int64_t c = 0; c < n; ++c) {
    const double dy = in[0][c], xhat = (in[1][c] - row[0]) * row[1];
    sums[0][c] = dy * xhat;
    sums[1][c] = dy;
    dx[c] = row[1] * (dy * column[0][c] - means[1] - xhat * means[0]);
  }
}

}  // namespace

DESCEND_ROW_GRADIENT(layer_norm_backward, LayerNormBackwardProgram)

}  // namespace descend::kernels
#endif  // HWY_ONCE
