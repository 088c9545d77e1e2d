// exp of a vector of floats or doubles: our own, since the same operations everywhere give the same bits everywhere.
#pragma once

#include <array>
#include <numbers>

#include "kernels/simd/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// exp(x) = 2^n * exp(r): n = x / ln 2 to the nearest integer, |r| <= ln 2 / 2, and exp(r) = 1 + r + r * r * p(r).
template <class W>
struct ExpConstants;

template <>
struct ExpConstants<float> {
  using Integer = int32_t;
  static constexpr int kMantissaBits = 23;
  static constexpr Integer kBias = 127;
  // Beyond these the result is 0 or infinity after rounding.
  static constexpr float kLowest = -104.0f;
  static constexpr float kHighest = 89.0f;
  static constexpr float kPerLn2 = 0x1.715476p+0f;
  static constexpr float kLn2High = 0x1.63p-1f;  // few bits: n * kLn2High is exact
  static constexpr float kLn2Low = -0x1.bd0106p-13f;
  static constexpr float kToInteger = 0x1.8p23f;  // added, it leaves the nearest integer in the low bits
  static constexpr int kLift = 65;                // 2^(n + kLift) is normal unless the result is large
  static constexpr float kLower = 0x1p-65f;
  // p, lowest power first; interpolated at Chebyshev points, relative error of the whole 2^-26.5.
  static constexpr float kP[] = {0.5f, 0x1.5554dcp-3f, 0x1.55551ap-5f, 0x1.120ba2p-7f, 0x1.6d113cp-10f};
};

template <>
struct ExpConstants<double> {
  using Integer = int64_t;
  static constexpr int kMantissaBits = 52;
  static constexpr Integer kBias = 1023;
  static constexpr double kLowest = -746.0;
  static constexpr double kHighest = 710.0;
  static constexpr double kPerLn2 = 0x1.71547652b82fep+0;
  static constexpr double kLn2High = 0x1.62e42fefap-1;
  static constexpr double kLn2Low = 0x1.cf79abc9e3b3ap-40;
  static constexpr double kToInteger = 0x1.8p52;
  static constexpr int kLift = 513;
  static constexpr double kLower = 0x1p-513;
  static constexpr double kP[] = {0.5,
                                  0x1.5555555555556p-3,
                                  0x1.5555555553d4fp-5,
                                  0x1.11111111109adp-7,
                                  0x1.6c16c17893833p-10,
                                  0x1.a01a01a7c8d47p-13,
                                  0x1.a019b8ef67c6cp-16,
                                  0x1.71de0d9c145d0p-19,
                                  0x1.2891a8c1d838dp-22,
                                  0x1.af38d53857513p-26};
};

// 2^f for |f| <= 1/2, as exact as elements of 16 bits can show, lowest power first: minimax, relative error 2^-23.7.
inline constexpr std::array kBriefPowerOfTwo{0x1.000002p+0f, 0x1.62e428p-1f, 0x1.ebf918p-3f,
                                             0x1.c6b6e4p-5f, 0x1.3d0c52p-7f, 0x1.5c08e6p-10f};

// The polynomial of these coefficients at v, lowest power first.
template <class W, class C>
HWY_INLINE Vector<W> polynomial(const C& coefficients, Vector<W> v) {
  const Tag<W> d;
  constexpr size_t kDegree = sizeof(C) / sizeof(W) - 1;
  auto p = hn::Set(d, coefficients[kDegree]);
  DESCEND_UNROLL
  for (size_t i = kDegree; i > 0; --i) p = hn::MulAdd(p, v, hn::Set(d, coefficients[i - 1]));
  return p;
}

// x within [low, high]; NaN stays NaN.
template <class W>
HWY_INLINE Vector<W> clamp_keeping_nan(Vector<W> x, W low, W high) {
  const Tag<W> d;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_ARCH_ARM_A64
  return hn::Min(hn::Set(d, high), hn::Max(hn::Set(d, low), x));  // on x86 a NaN wins as the second operand
#else
  const auto above = hn::IfThenElse(hn::Lt(x, hn::Set(d, low)), hn::Set(d, low), x);
  return hn::IfThenElse(hn::Gt(above, hn::Set(d, high)), hn::Set(d, high), above);
#endif
}

// Within one unit in the last place over the whole range: overflow gives infinity, what is too small subnormals and 0.
// Of what is never large (kBounded: 40 at most, and softmax has up to 32, see kRounds there) nothing is done about
// overflow.
template <class W, bool kBounded = false>
HWY_INLINE Vector<W> exp(Vector<W> x) {
  using C = ExpConstants<W>;
  const Tag<W> d;
  [[maybe_unused]] const Tag<typename C::Integer> di;
  // What is far too small is 0 before a product underflows: processors take ten times as long over that.
#if HWY_TARGET == HWY_AVX3
  constexpr int kOffset = 0;
  const auto lowest = hn::Set(d, C::kLowest);
  if constexpr (!kBounded) x = hn::Min(hn::Set(d, C::kHighest), x);
#else
  constexpr int kOffset = kBounded ? C::kBias + C::kLift : 0;  // even, lest another integer be the nearest
  const auto vanishes = hn::Lt(x, hn::Set(d, C::kLowest));
  if constexpr (!kBounded) x = clamp_keeping_nan<W>(x, C::kLowest, C::kHighest);
#endif
  const auto magic = hn::Set(d, C::kToInteger + W{kOffset});
  const auto shifted = hn::MulAdd(x, hn::Set(d, C::kPerLn2), magic);
  const auto n = hn::Sub(shifted, magic);
  const auto r = hn::NegMulAdd(n, hn::Set(d, C::kLn2Low), hn::NegMulAdd(n, hn::Set(d, C::kLn2High), x));
  const auto mantissa = hn::Add(hn::Set(d, W{1}), hn::MulAdd(hn::Mul(r, r), polynomial<W>(C::kP, r), r));

#if HWY_TARGET == HWY_AVX3
  if constexpr (sizeof(W) == 4) {
    return Vector<W>{_mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x.raw, lowest.raw, _CMP_NLT_UQ), mantissa.raw, n.raw)};
  } else {
    return Vector<W>{_mm512_maskz_scalef_pd(_mm512_cmp_pd_mask(x.raw, lowest.raw, _CMP_NLT_UQ), mantissa.raw, n.raw)};
  }
#else
  // 2^n may leave the range where the result does not: two factors, of which the first is exact.
  if constexpr (kBounded) {
    const auto lift = hn::BitCast(d, hn::ShiftLeft<C::kMantissaBits>(hn::BitCast(di, shifted)));
    const auto lifted = hn::IfThenZeroElse(vanishes, hn::Mul(mantissa, lift));
    return hn::Mul(lifted, hn::Set(d, C::kLower));
  }
  const auto exponent = hn::Sub(hn::BitCast(di, shifted), hn::BitCast(di, magic));
  const auto half = hn::ShiftRight<1>(exponent);
  const auto power = [&](auto e) HWY_ATTR {
    return hn::BitCast(d, hn::ShiftLeft<C::kMantissaBits>(hn::Add(e, hn::Set(di, C::kBias))));
  };
  const auto kept = hn::IfThenZeroElse(vanishes, mantissa);
  return hn::Mul(hn::Mul(kept, power(half)), power(hn::Sub(exponent, half)));
#endif
}

// exp of one number: that of the C library is not the same on every machine.
inline double exp_of_one(double x) { return hn::GetLane(exp<double>(splat(x))); }

// The integer nearest to t, of |t| < 2^22.
HWY_INLINE Vector<float> nearest_integer(Vector<float> t) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_ARCH_ARM_A64
  return hn::Round(t);  // one operation, where what AVX-512 has for t less this integer takes as long as many
#else
  const auto magic = hn::Set(Tag<float>(), ExpConstants<float>::kToInteger);
  return hn::Sub(hn::Add(t, magic), magic);
#endif
}

// 2^t of t that is 60 at most, as exact as elements of 16 bits can show; 0 where it is not wanted.
HWY_INLINE Vector<float> brief_power_of_two(Vector<float> t, hn::Mask<Tag<float>> wanted) {
  const Tag<float> d;
  const auto lowest = hn::Set(d, -150.5f);  // as kLowest
#if HWY_TARGET == HWY_AVX3
  const auto n = nearest_integer(t), mantissa = polynomial<float>(kBriefPowerOfTwo, hn::Sub(t, n));
  const auto kept = _mm512_mask_cmp_ps_mask(wanted.raw, t.raw, lowest.raw, _CMP_NLT_UQ);
  return Vector<float>{_mm512_maskz_scalef_ps(kept, mantissa.raw, n.raw)};
#else
  using C = ExpConstants<float>;
  const auto magic = hn::Set(d, C::kToInteger + float{C::kBias + C::kLift});
  const auto shifted = hn::Add(t, magic);
  const auto mantissa = polynomial<float>(kBriefPowerOfTwo, hn::Sub(t, hn::Sub(shifted, magic)));
  const auto lift = hn::BitCast(d, hn::ShiftLeft<C::kMantissaBits>(hn::BitCast(Tag<C::Integer>(), shifted)));
  const auto kept = hn::AndNot(hn::Lt(t, lowest), wanted);
  return hn::Mul(hn::IfThenElseZero(kept, hn::Mul(mantissa, lift)), hn::Set(d, C::kLower));
#endif
}

// exp of what is at most 0; of elements of 16 bits as exact as they can show.
template <class T>
HWY_INLINE Vector<Wide<T>> exp_below(Vector<Wide<T>> v) {
  if constexpr (sizeof(T) == 2) {
    const Tag<float> d;
    return brief_power_of_two(hn::Mul(v, hn::Set(d, static_cast<float>(std::numbers::log2e))),
                              hn::FirstN(d, hn::Lanes(d)));
  } else {
    return exp<T, true>(v);
  }
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
