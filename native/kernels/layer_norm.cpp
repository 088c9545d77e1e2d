#include "kernels/layer_norm.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/rows/engine.h"

#define HWY_TARGET_INCLUDE "kernels/layer_norm.cpp"
#include "kernels/dispatch.h"
#include "kernels/norm_finish-inl.h"
#include "kernels/rows/shared-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

//   d = x - pivot,  mean = pivot + mean(d),  rstd = 1 / sqrt(mean(d * d) - mean(d)^2 + epsilon)
//   y = ((x - centre) * rstd + level) * gamma + beta
// Data farther from 0 than it is wide is brought near it first, where the difference is exact: its centre is its mean,
// rounded, and what that lacks goes into the level. Other data has centre 0: one rounding less.
struct LayerNormProgram {
  enum Input { kX, kInputs };
  enum Parameter { kGamma, kBeta, kParameters };
  enum Scalar { kEpsilon, kScalars };
  enum Term { kNumbers = 0, kPivot = 0, kCentre, kLevel, kMean, kRstd, kTerms, kStatistics = 2, kNearer = kMean };
  enum Sum { kDistance, kSquare, kSums, kColumnSums = 0 };
  static constexpr int kRowsAtOnce = HWY_TARGET == HWY_AVX3 ? 2 : 1;
  static constexpr int kRowsMapped = kHasVectors ? 2 : 1;
  static constexpr bool kKeepsLoaded = false;  // the sums need the registers
  static constexpr bool kFoldsInDouble = false;
  static constexpr Nan kNan = Nan::kOfBfloat16;  // rows with any are computed in double

  template <class V>
  static HWY_INLINE void sum(const V* in, const V*, const V* row, V* sums) {
    const V distance = hn::Sub(in[kX], row[kPivot]);
    sums[kDistance] = hn::Add(sums[kDistance], distance);
    sums[kSquare] = hn::MulAdd(distance, distance, sums[kSquare]);
  }

  // The terms hold if the pivot is within a standard deviation of the mean: what is taken from the squares is then no
  // more than what is left.
  template <class W, class V>
  static HWY_INLINE auto finish(const V* means, const double* scalars, V* row) {
    const Tag<double> d;
    const auto excess = hn::Mul(means[kDistance], means[kDistance]);
    const auto left = hn::Sub(means[kSquare], excess);
    const auto variance = hn::IfThenZeroElse(hn::Lt(left, hn::Zero(d)), left);
    const auto holds = norm_rstd<W>(means[kSquare], variance, scalars[kEpsilon], row[kRstd]);
    const auto mean = hn::Add(row[kPivot], means[kDistance]), rounded = round_to<W>(mean);
    row[kMean] = mean;
    row[kCentre] = hn::IfThenZeroElse(hn::Lt(hn::Mul(mean, mean), variance), rounded);
    row[kLevel] = hn::Mul(hn::Sub(row[kCentre], mean), round_to<W>(row[kRstd]));
    return hn::And(holds, hn::Le(excess, hn::Mul(splat(0.5), means[kSquare])));
  }

  template <class V>
  static HWY_INLINE V map(const V* in, const V* column, const V* row, V*) {
    const V xhat = hn::MulAdd(hn::Sub(in[kX], row[kCentre]), row[kRstd], row[kLevel]);
    return hn::MulAdd(xhat, column[kGamma], column[kBeta]);
  }
};

template <class T>
RowKernels<Wide<T>> layer_norm_kernels() {
  return row_kernels<LayerNormProgram, T>();
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace descend::kernels {
namespace {

// Behind the two sums is the pivot.
void exact_sums(int64_t n, const double* const* in, const double* const*, const double*, double* sums) {
  for (int64_t c = 0; c < n; ++c) {
    const double distance = in[0][c] - sums[2];
    sums[0] += distance;
    sums[1] += distance * distance;
  }
}

void exact_statistics(const double* numbers, const double* means, double* statistics) {
  const bool too_large = std::isinf(means[1]) && std::isfinite(means[0]);  // what is taken from it may be, too
  const double variance = too_large ? means[1] : means[1] - means[0] * means[0];
  statistics[0] = means[2] + means[0];
  statistics[1] = 1 / std::sqrt((variance < 0 ? 0 : variance) + numbers[0]);
}

void exact_map(int64_t n, const double* const* in, const double* const* column, const double* numbers,
               const double* means, double* y, double* const*) {
  double of_row[2];
  exact_statistics(numbers, means, of_row);
  for (int64_t c = 0; c < n; ++c) y[c] = (in[0][c] - of_row[0]) * of_row[1] * column[0][c] + column[1][c];
}

}  // namespace

template <class T>
size_t layer_norm_scratch(int64_t rows, int64_t columns) {
  return forward_scratch(rows, columns, kElementOfType<T>, 2);
}

template <class T>
void layer_norm(const LayerNorm<T>& p, void* scratch) {
  using W = Wide<T>;
  static const RowOperator<W> op{.kernels = DESCEND_CHOOSE(layer_norm_kernels<T>)(),
                                 .exact_sums = exact_sums,
                                 .exact_statistics = exact_statistics,
                                 .exact_map = exact_map};
  if (p.columns <= 0) {
    if (p.mean != nullptr) std::fill_n(p.mean, p.rows, W{0});
    if (p.rstd != nullptr) std::fill_n(p.rstd, p.rows, std::numeric_limits<W>::quiet_NaN());
  }
  const RowProblem<W> problem{.rows = p.rows,
                              .columns = p.columns,
                              .element = kElementOfType<T>,
                              .in = {stream_of(p.x)},
                              .out = stream_of(p.y),
                              .statistics = {p.mean, p.rstd},
                              .scalars = {p.epsilon},
                              .parameters = {{p.gamma.wide, p.gamma.own}, {p.beta.wide, p.beta.own}},
                              .sums = {}};
  run_forward(problem, op, scratch);
}

#define DESCEND_INSTANTIATE(T)                                          \
  template size_t layer_norm_scratch<T>(int64_t rows, int64_t columns); \
  template void layer_norm<T>(const LayerNorm<T>& problem, void* scratch);
DESCEND_INSTANTIATE(float16)
DESCEND_INSTANTIATE(bfloat16)
DESCEND_INSTANTIATE(float)
DESCEND_INSTANTIATE(double)

}  // namespace descend::kernels
#endif  // HWY_ONCE
