// Swish, z * sigmoid(s * z), and its slope, from one exp and one division; and where group norm finds its coefficients.
#if defined(DESCEND_KERNELS_SWISH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DESCEND_KERNELS_SWISH_INL_H_
#undef DESCEND_KERNELS_SWISH_INL_H_
#else
#define DESCEND_KERNELS_SWISH_INL_H_
#endif

#include <iterator>

#include "hwy/highway.h"
#include "kernels/exp-inl.h"
#include "kernels/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// A coefficient that a run of elements shares, or one for each of them.
template <class W>
struct Same {
  explicit HWY_INLINE Same(W all) : value(splat(all)) {}
  Vector<W> value;
  template <class Extent>
  HWY_INLINE Vector<W> at(Extent, int64_t, size_t) const {
    return value;
  }
};
template <class W>
struct Each {
  explicit HWY_INLINE Each(const W* first) : values(first) {}
  const W* values;
  template <class Extent>
  HWY_INLINE Vector<W> at(Extent extent, int64_t j, size_t k) const {
    return load(extent, values + j, k);
  }
};

// Vector k of a pack with 0 in the lanes beyond the row: whatever was computed there must not reach a sum.
template <class W>
HWY_INLINE Vector<W> inside(Full, Vector<W> v, size_t) {
  return v;
}
template <class W>
HWY_INLINE Vector<W> inside(Part part, Vector<W> v, size_t k) {
  const Tag<W> d;
  const size_t first = k * kVectorLanes<W>;
  return hn::IfThenElseZero(hn::FirstN(d, part.n > first ? part.n - first : 0), v);
}

// |s * z| beyond which sigmoid is 0 or 1 whatever it is multiplied by.
template <class W>
inline constexpr W kSaturated = sizeof(W) == 4 ? W{128} : W{750};

// Vectors that are taken through the long chain of operations side by side, step by step: one alone would wait for each
// result, and the processor looks too few instructions ahead to do this by itself.
inline constexpr size_t kAbreastVectors = 4;

// t[k] = exp(-t[k]) for t in [0, kSaturated]: the very bits of exp(), for less, since the exponent needs no two halves:
// 2^n is made 2^64 too large, which keeps it normal, and the last product rounds to a subnormal where one is due.
template <class W, size_t kN>
HWY_INLINE void exp_of_minus(Vector<W>* t) {
  using C = ExpConstants<W>;
  const Tag<W> d;
  [[maybe_unused]] const Tag<typename C::Integer> di;
  // Adding it leaves n and the exponent's bias in the low bits.
  const auto magic = hn::Set(d, C::kToInteger + static_cast<W>(C::kBias + 64));
  Vector<W> shifted[kN], n[kN], r[kN], p[kN];
  each<kN>([&](size_t k) HWY_ATTR { shifted[k] = hn::NegMulAdd(t[k], hn::Set(d, C::kPerLn2), magic); });
  each<kN>([&](size_t k) HWY_ATTR { n[k] = hn::Sub(shifted[k], magic); });
  each<kN>([&](size_t k) HWY_ATTR { r[k] = hn::NegMulSub(n[k], hn::Set(d, C::kLn2High), t[k]); });
  each<kN>([&](size_t k) HWY_ATTR { r[k] = hn::NegMulAdd(n[k], hn::Set(d, C::kLn2Low), r[k]); });
  each<kN>([&](size_t k) HWY_ATTR { p[k] = hn::Set(d, C::kP[std::size(C::kP) - 1]); });
  each<std::size(C::kP) - 1>([&](size_t i) HWY_ATTR {
    each<kN>([&](size_t k) HWY_ATTR { p[k] = hn::MulAdd(p[k], r[k], hn::Set(d, C::kP[std::size(C::kP) - 2 - i])); });
  });
  each<kN>([&](size_t k) HWY_ATTR { p[k] = hn::MulAdd(hn::Mul(r[k], r[k]), p[k], r[k]); });
  each<kN>([&](size_t k) HWY_ATTR { p[k] = hn::Add(hn::Set(d, W{1}), p[k]); });
#if HWY_TARGET == HWY_AVX3
  if constexpr (sizeof(W) == 4) {
    each<kN>([&](size_t k) HWY_ATTR { t[k] = Vector<W>{_mm512_maskz_scalef_ps(0xFFFF, p[k].raw, n[k].raw)}; });
  } else {
    each<kN>([&](size_t k) HWY_ATTR { t[k] = Vector<W>{_mm512_maskz_scalef_pd(0xFF, p[k].raw, n[k].raw)}; });
  }
#else
  each<kN>([&](size_t k) HWY_ATTR {
    p[k] = hn::Mul(p[k], hn::BitCast(d, hn::ShiftLeft<C::kMantissaBits>(hn::BitCast(di, shifted[k]))));
  });
  each<kN>([&](size_t k) HWY_ATTR { t[k] = hn::Mul(p[k], hn::Set(d, W{0x1p-64})); });
#endif
}

// |u| within the bounds.
template <class W>
HWY_INLINE Vector<W> bounded_magnitude(Vector<W> u) {
  const auto most = hn::Set(Tag<W>(), kSaturated<W>);
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_ARCH_ARM_A64
  return hn::Min(most, hn::Abs(u));  // a NaN wins as the second operand
#else
  return hn::IfThenElse(hn::Gt(hn::Abs(u), most), most, hn::Abs(u));
#endif
}

// No difference of nearly equal numbers and no large exp here: with e = exp(-|u|), the sigmoids of |u| and -|u| are
// 1 / (1 + e) and e / (1 + e), both to the last bits.

// The slope of swish, sig * (1 + u * (1 - sig)) with sig = sigmoid(u), in two steps: what comes before the division,
// and the rest. With kBrief u is given in units of ln 2, and the result is as exact as elements of 16 bits can show: a
// few units in float's last place, and as many more as |u| has binary digits. Otherwise it is within two units for
// every u.

// 2^f = p(f) for |f| <= 1/2: minimax, relative error 2^-23.7.
inline constexpr float kPowerOfTwo[] = {0x1.000002p+0f, 0x1.62e428p-1f, 0x1.ebf918p-3f,
                                        0x1.c6b6e4p-5f, 0x1.3d0c52p-7f, 0x1.5c08e6p-10f};
inline constexpr float kLowestPower = -151.0f;  // 2 to this is 0

// power[k] = 2^t[k] for t in [kLowestPower, 0].
template <size_t kN>
HWY_INLINE void powers_of_two(const Vector<float>* t, Vector<float>* power) {
  const Tag<float> d;
  Vector<float> n[kN], f[kN];  // t = n + f, n the nearest integer
#if HWY_TARGET == HWY_AVX3
  each<kN>([&](size_t k) HWY_ATTR { f[k] = Vector<float>{_mm512_maskz_reduce_ps(0xFFFF, t[k].raw, 8)}; });
  each<kN>([&](size_t k) HWY_ATTR { n[k] = hn::Sub(t[k], f[k]); });
#else
  using C = ExpConstants<float>;
  const Tag<C::Integer> di;
  const auto magic = hn::Set(d, C::kToInteger + static_cast<float>(C::kBias + 64));
  Vector<float> shifted[kN];
  each<kN>([&](size_t k) HWY_ATTR { shifted[k] = hn::Add(t[k], magic); });
  each<kN>([&](size_t k) HWY_ATTR { n[k] = hn::Sub(shifted[k], magic); });
  each<kN>([&](size_t k) HWY_ATTR { f[k] = hn::Sub(t[k], n[k]); });
#endif
  constexpr size_t kDegree = std::size(kPowerOfTwo) - 1;
  each<kN>([&](size_t k) HWY_ATTR { power[k] = hn::Set(d, kPowerOfTwo[kDegree]); });
  DESCEND_UNROLL
  for (size_t i = 1; i <= kDegree; ++i) {
    each<kN>([&](size_t k) HWY_ATTR { power[k] = hn::MulAdd(power[k], f[k], hn::Set(d, kPowerOfTwo[kDegree - i])); });
  }
#if HWY_TARGET == HWY_AVX3
  each<kN>([&](size_t k)
               HWY_ATTR { power[k] = Vector<float>{_mm512_maskz_scalef_ps(0xFFFF, power[k].raw, n[k].raw)}; });
#else
  // As in exp_of_minus(): 2^n is made 2^64 too large.
  each<kN>([&](size_t k) HWY_ATTR {
    const auto exponent = hn::ShiftLeft<C::kMantissaBits>(hn::BitCast(di, shifted[k]));
    power[k] = hn::Mul(hn::Mul(power[k], hn::BitCast(d, exponent)), hn::Set(d, 0x1p-64f));
  });
#endif
}

// e = exp(-|u|), and u is brought within the bounds beyond which the slope is 0 or 1.
template <bool kBrief, class W, size_t kN>
HWY_INLINE void begin_slopes(Vector<W>* u, Vector<W>* e) {
  if constexpr (kBrief) {
    Vector<W> t[kN];
    each<kN>([&](size_t k) HWY_ATTR { u[k] = clamp_keeping_nan<W>(u[k], kLowestPower, -kLowestPower); });
    each<kN>([&](size_t k) HWY_ATTR { t[k] = hn::Or(u[k], hn::Set(Tag<W>(), W{-0.0})); });
    powers_of_two<kN>(t, e);
  } else {
    each<kN>([&](size_t k) HWY_ATTR { e[k] = bounded_magnitude<W>(u[k]); });
    each<kN>([&](size_t k) HWY_ATTR { u[k] = hn::CopySign(e[k], u[k]); });
    exp_of_minus<W, kN>(e);
  }
}

// Brief: (1 + e (1 + u)) / (1 + e)^2 for u >= 0, e (1 + u + e) / (1 + e)^2 for u < 0. It has fewer operations, of which
// more round.
template <bool kBrief, class W, size_t kN>
HWY_INLINE void finish_slopes(const Vector<W>* u, const Vector<W>* e, Vector<W>* slope) {
  const Tag<W> d;
  const auto one = hn::Set(d, W{1}), zero = hn::Zero(d);
  Vector<W> a[kN], b[kN];
  if constexpr (kBrief) {
    const auto ln2 = hn::Set(d, 0x1.62e43p-1f), two = hn::Set(d, 2.0f);
    each<kN>([&](size_t k) HWY_ATTR { a[k] = hn::Add(two, e[k]); });
    each<kN>([&](size_t k) HWY_ATTR { b[k] = hn::MulAdd(u[k], ln2, one); });
    each<kN>([&](size_t k) HWY_ATTR { slope[k] = hn::IfThenElse(hn::Lt(u[k], zero), hn::Mul(e[k], e[k]), one); });
    each<kN>([&](size_t k) HWY_ATTR { a[k] = hn::MulAdd(e[k], a[k], one); });
    each<kN>([&](size_t k) HWY_ATTR { slope[k] = hn::MulAdd(e[k], b[k], slope[k]); });
    each<kN>([&](size_t k) HWY_ATTR { slope[k] = hn::Div(slope[k], a[k]); });
  } else {
    each<kN>([&](size_t k) HWY_ATTR { a[k] = hn::Div(one, hn::Add(one, e[k])); });
    each<kN>([&](size_t k) HWY_ATTR { b[k] = hn::Mul(e[k], a[k]); });
    each<kN>([&](size_t k) HWY_ATTR { slope[k] = hn::IfThenElse(hn::Lt(u[k], zero), b[k], a[k]); });
    each<kN>([&](size_t k) HWY_ATTR { b[k] = hn::Mul(b[k], a[k]); });
    each<kN>([&](size_t k) HWY_ATTR { slope[k] = hn::MulAdd(u[k], b[k], slope[k]); });
  }
}

// z[k] = z[k] * sigmoid(s * z[k])
template <class W, size_t kN>
HWY_INLINE void swish(Vector<W> s, Vector<W>* z) {
  const Tag<W> d;
  const auto one = hn::Set(d, W{1});
  Vector<W> u[kN], e[kN];
  each<kN>([&](size_t k) HWY_ATTR { u[k] = hn::Mul(s, z[k]); });
  each<kN>([&](size_t k) HWY_ATTR { e[k] = bounded_magnitude<W>(u[k]); });
  exp_of_minus<W, kN>(e);
  each<kN>([&](size_t k) HWY_ATTR {
    const auto factor = hn::IfThenElse(hn::Lt(u[k], hn::Zero(d)), e[k], one);
    z[k] = hn::IfThenZeroElse(hn::Eq(factor, hn::Zero(d)), hn::Mul(z[k], factor));  // 0 even where z has overflowed
  });
  each<kN>([&](size_t k) HWY_ATTR { z[k] = hn::Div(z[k], hn::Add(one, e[k])); });
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DESCEND_KERNELS_SWISH_INL_H_
