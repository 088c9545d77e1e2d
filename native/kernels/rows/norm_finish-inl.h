// What norms and their gradients have in common: a row's terms, and when they hold.
#pragma once

#include <limits>

#include "kernels/rows/tame.h"
#include "kernels/simd/doubles-inl.h"
#include "kernels/simd/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Whether a factor is so near to 1 that it takes no bits from what it multiplies.
template <class W>
HWY_INLINE hn::Mask<Tag<double>> norm_near(Vector<double> factor) {
  const auto scale = hn::Abs(factor);
  return hn::And(hn::Ge(scale, splat(static_cast<double>(kTameLeast<W>))),
                 hn::Le(scale, splat(static_cast<double>(kTameMost<W>))));
}

// slope = mean(g * xc) * rstd^3. It holds where rstd is near 1 and neither an infinity, a NaN nor a subnormal number
// shows: rstd could bring the bits that such a number has lost back into the range.
template <class W>
HWY_INLINE hn::Mask<Tag<double>> norm_slope(Vector<double> mean_gx, Vector<double> rstd, Vector<double>& slope) {
  const Tag<double> d;
  const auto least = splat(static_cast<double>(std::numeric_limits<W>::min()));
  const auto most = splat(static_cast<double>(std::numeric_limits<W>::max()));
  slope = hn::Mul(hn::Mul(hn::Mul(mean_gx, rstd), rstd), rstd);
  const auto size = hn::Abs(slope);
  const auto exact = hn::Or(hn::Ge(hn::Min(size, hn::Abs(mean_gx)), least), hn::Eq(size, hn::Zero(d)));
  return hn::And(hn::And(hn::Le(size, most), exact), norm_near<W>(rstd));
}

// The double nearest v among those that W has.
template <class W>
HWY_INLINE Vector<double> round_to(Vector<double> v) {
  return widen_to_double(Tag<double>(), narrow_double<W>(Tag<double>(), v));
}

// rstd = 1 / sqrt(variance + epsilon). It holds where the mean of what was squared has neither left the range of W nor,
// with an epsilon as small, lost bits to underflow. In double there is nowhere else to compute it.
template <class W>
HWY_INLINE hn::Mask<Tag<double>> norm_rstd(Vector<double> squares, Vector<double> variance, double epsilon,
                                           Vector<double>& rstd) {
  constexpr double kLeast = sizeof(W) == sizeof(double) ? 0 : 0x1p-80;
  const auto scale = splat(epsilon);
  rstd = hn::Div(splat(1.0), hn::Sqrt(hn::Add(variance, scale)));
  return hn::And(hn::Ge(hn::Add(squares, scale), splat(kLeast)),
                 hn::Le(squares, splat(std::numeric_limits<double>::max())));
}

// What the RMS norms have in common.
//   rstd = 1 / sqrt(mean(x * x) + epsilon)
struct RootMeanSquare {
  enum Input { kX, kInputs };
  enum Parameter { kGamma, kParameters };
  enum Scalar { kEpsilon, kScalars };
  enum Term { kNumbers = 0, kRstd = 0, kTerms, kStatistics = 1 };
  enum Sum { kSums = 1, kColumnSums = 0 };
  static constexpr int kRowsAtOnce = kHasVectors ? 2 : 1;
  static constexpr int kRowsMapped = kHasVectors ? 2 : 1;
  static constexpr bool kFoldsInDouble = false;
  static constexpr Nan kNan = Nan::kOfBfloat16;  // rows with any are computed in double

  template <class V>
  static HWY_INLINE void sum(const V* in, const V*, const V*, V* sums) {
    sums[0] = hn::MulAdd(in[kX], in[kX], sums[0]);
  }

  template <class W, class V>
  static HWY_INLINE auto finish(const V* means, const double* scalars, V* row) {
    return norm_rstd<W>(means[0], means[0], scalars[kEpsilon], row[kRstd]);
  }

  template <class V>
  static HWY_INLINE V normalised(const V* in, const V* row) {
    return hn::Mul(in[kX], row[kRstd]);
  }
};

// Mean and variance of a row; what layer norm and group norm have in common.
//   d = x - pivot,  mean = pivot + mean(d),  rstd = 1 / sqrt(mean(d * d) - mean(d)^2 + epsilon)
//   xhat = (x - centre) * rstd + level
// Data farther from 0 than it is wide is brought near it first, where the difference is exact: its centre is its mean,
// rounded, and what that lacks goes into the level. Other data has centre 0: one rounding less.
// Before the terms are so many numbers of a row.
template <int kRead = 0>
struct Moments {
  enum Input { kX, kInputs };
  enum Term {
    kNumbers = kRead,
    kPivot = kRead,
    kCentre,
    kLevel,
    kMean,
    kRstd,
    kTerms,
    kStatistics = 2,
    kNearer = kMean
  };
  enum Sum { kDistance, kSquare, kSums, kColumnSums = 0 };
  static constexpr int kRowsAtOnce = HWY_TARGET == HWY_AVX3 ? 2 : 1;
  static constexpr int kRowsMapped = kHasVectors ? 2 : 1;
  static constexpr bool kFoldsInDouble = false;
  static constexpr Nan kNan = Nan::kOfBfloat16;  // rows with any are computed in double

  template <class V>
  static HWY_INLINE void sum(const V* in, const V*, const V* row, V* sums) {
    const V distance = hn::Sub(in[kX], row[kPivot]);
    sums[kDistance] = hn::Add(sums[kDistance], distance);
    sums[kSquare] = hn::MulAdd(distance, distance, sums[kSquare]);
  }

  // The terms hold if the pivot is within a standard deviation of the mean: what is taken from the squares is then no
  // more than what is left. Epsilon is the first of the call's numbers.
  template <class W, class V>
  static HWY_INLINE auto finish(const V* means, const double* epsilon, V* row) {
    const Tag<double> d;
    const auto excess = hn::Mul(means[kDistance], means[kDistance]);
    const auto left = hn::Sub(means[kSquare], excess);
    const auto variance = hn::IfThenZeroElse(hn::Lt(left, hn::Zero(d)), left);
    const auto holds = norm_rstd<W>(means[kSquare], variance, epsilon[0], row[kRstd]);
    const auto mean = hn::Add(row[kPivot], means[kDistance]), rounded = round_to<W>(mean);
    row[kMean] = mean;
    row[kCentre] = hn::IfThenZeroElse(hn::Lt(hn::Mul(mean, mean), variance), rounded);
    row[kLevel] = hn::Mul(hn::Sub(row[kCentre], mean), round_to<W>(row[kRstd]));
    return hn::And(holds, hn::Le(excess, hn::Mul(splat(0.5), means[kSquare])));
  }

  template <class V>
  static HWY_INLINE V normalised(const V* in, const V* row) {
    return hn::MulAdd(hn::Sub(in[kX], row[kCentre]), row[kRstd], row[kLevel]);
  }
};

// Layer norm's gradient.
//   g = dy * gamma, xc = x - mean
//   slope = rstd^3 * mean(g * xc),  offset = rstd * mean(g)
//   dx = rstd * dy * gamma - (slope * xc + offset),  dgamma = sum over rows of dy * rstd * xc,  dbeta = that of dy
struct LayerNormGradient {
  enum Input { kDy, kX, kInputs };
  enum Parameter { kGamma, kParameters };
  enum Term { kMean, kRstd, kNumbers, kSlope = kNumbers, kOffset, kTerms };
  enum Sum { kGx, kG, kSums, kColumnSums = kSums };
  static constexpr int kScalars = 0, kStatistics = 0;
  static constexpr int kRowsAtOnce = HWY_TARGET == HWY_AVX3 ? 2 : 1;
  static constexpr int kRowsMapped = kHasVectors ? 2 : 1;
  static constexpr bool kFoldsInDouble = true;
  static constexpr Nan kNan = Nan::kOfBfloat16;  // rows with any are computed in double

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
