// GELU and its slope, by erf and by tanh, to the last bits for every x.
//
// With a = |x|, GELU is max(x, 0) - fall(a), and its slope is s(a) where x < 0 and 1 - s(a) elsewhere. Both fall and s
// are a quotient times E = 2^-t(a), which is exp(-a^2 / 2) by erf and exp(-|u|) by tanh. So nothing cancels where x <
// 0, and where x > 0 what is taken away is small.
#pragma once

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <type_traits>

#include "kernels/simd/swish-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// The factor of E in fall(a) and in s: quotients of two polynomials, lowest power first, minimax up to kFar. s is 0 at
// a = kZero, so that its quotient is taken of the rest and multiplied by kZero - a. kBrief: as exact as elements of 16
// bits can show. tools/fit_gelu.py makes them.
template <class W, bool kBrief>
struct NormalTail;

// The coefficients of (p(v) - p(0)) / v.
template <class C>
constexpr auto behind_first(const C& p) {
  std::array<std::decay_t<decltype(p[0])>, sizeof(C) / sizeof(p[0]) - 1> rest{};
  std::copy(std::begin(p) + 1, std::end(p), rest.begin());
  return rest;
}

template <>
struct NormalTail<float, false> {
  static constexpr float kZero = 0x1.80ead2p-1f, kZeroLow = -0x1.a03fd4p-27f;
  // Relative errors 2^-26.2 and 2^-25.7.
  static constexpr float kFallOver[] = {0x1p-1f, 0x1.c995c2p-2f, 0x1.83e422p-3f, 0x1.5d899cp-5f, 0x1.20df1ap-8f};
  static constexpr float kFallUnder[] = {0x1p+0f,        0x1.b10d12p+0f, 0x1.3a7fp+0f,
                                         0x1.f1613ep-2f, 0x1.b6163cp-4f, 0x1.6a0c68p-7f};
  static constexpr float kSlopeOver[] = {0x1.7d16f6p-1f, 0x1.b9b78ep-1f, 0x1.c3c6f8p-2f, 0x1.d3c65ep-4f,
                                         0x1.a34392p-7f};
  static constexpr float kSlopeUnder[] = {0x1.1e8p+0f, 0x1.982d56p+0f, 0x1.d86cdep-1f, 0x1.0c7154p-2f, 0x1.06bc8ep-5f};
};

template <>
struct NormalTail<float, true> {
  static constexpr float kZero = 0x1.80ead2p-1f, kZeroLow = -0x1.a03fd4p-27f;
  // Relative errors 2^-21.1 and 2^-20.5.
  static constexpr float kFallOver[] = {0x1p-1f, 0x1.72bcaap-2f, 0x1.e9a77ap-4f, 0x1.171c0ap-6f};
  static constexpr float kFallUnder[] = {0x1p+0f, 0x1.859f98p+0f, 0x1.e83acp-1f, 0x1.32a3eap-2f, 0x1.5dda52p-5f};
  static constexpr float kSlopeOver[] = {0x1.7d16f6p-1f, 0x1.6756b2p-1f, 0x1.1925f6p-2f, 0x1.5c8982p-5f};
  static constexpr float kSlopeUnder[] = {0x1.1e8p+0f, 0x1.5a403cp+0f, 0x1.372becp-1f, 0x1.b4dc24p-4f};
};

template <>
struct NormalTail<double, false> {
  static constexpr double kZero = 0x1.80ead197f00b4p-1, kZeroLow = -0x1.13e74c58cada8p-56;
  // Relative errors 2^-57.0 and 2^-57.1.
  static constexpr double kFallOver[] = {0x1p-1,
                                         0x1.a90c852d3f3d7p-1,
                                         0x1.5dbe832d9e9b3p-1,
                                         0x1.70a8688030397p-2,
                                         0x1.111905b45df61p-3,
                                         0x1.27cbb96f7002p-5,
                                         0x1.d9c903c731407p-8,
                                         0x1.15653074b2b6ep-10,
                                         0x1.c84d9e5f75a54p-14,
                                         0x1.df7d806175dfep-18,
                                         0x1.eefd26164b3e9p-23};
  static constexpr double kFallUnder[] = {0x1p+0,
                                          0x1.3aa75765f078p+1,
                                          0x1.69eded885a3a2p+1,
                                          0x1.01a898d41f0c4p+1,
                                          0x1.f9c2a6f13f419p-1,
                                          0x1.6847eede835c4p-2,
                                          0x1.7d715cc15522cp-4,
                                          0x1.2d598de1db68cp-6,
                                          0x1.5e02c934d383cp-9,
                                          0x1.1e8d2c89817bp-12,
                                          0x1.2c79d7c0817f8p-16,
                                          0x1.3630326eb3f33p-21};
  static constexpr double kSlopeOver[] = {0x1.a9513fad5b372p-1,  0x1.ac260a55ee55bp+0, 0x1.9eb5107127cd5p+0,
                                          0x1.f6c4d2c836ea4p-1,  0x1.a44073e35e7ddp-2, 0x1.f95a179fd022dp-4,
                                          0x1.bb05aa15a19c7p-6,  0x1.1852e5b2c1f47p-8, 0x1.ec52a1bb0ee4ep-12,
                                          0x1.10c30fa2fd4b1p-15, 0x1.24aeb3423f975p-20};
  static constexpr double kSlopeUnder[] = {
      0x1.3fcp+0,           0x1.6c57e80cf60cbp+1, 0x1.811862236d335p+1, 0x1.f24e8b23fa826p+0,  0x1.b63f1ee0d65bfp-1,
      0x1.1293ade904ad9p-2, 0x1.f25a4804b9882p-5, 0x1.44f1d28c6b1c4p-7, 0x1.252bd40a5bed6p-10, 0x1.4d3d0c1dd9cbfp-14,
      0x1.6ed2b1522dcecp-19};
};

// t(a) = -a * (high + low), and the quotients, of GELU by erf.
template <class W, bool kBrief>
struct ByErf {
  using C = NormalTail<W, kBrief>;
  static constexpr W kReach = sizeof(W) == 4 ? W(12.8) : W(37);  // E stays normal
  static constexpr W kFar = sizeof(W) == 4 ? W(15) : W(39.5);    // fall and s are 0

  static HWY_INLINE void exponent(Vector<W> a, Vector<W>& high, Vector<W>& low) {
    const Tag<W> d;
    // Of 1 / (2 ln 2) the nearest number of the type will do: the quotients make up for what it lacks.
    const auto per_square = hn::Set(d, static_cast<W>(-kPerLn2High / 2));
    high = hn::Mul(a, per_square);
    low = hn::MulSub(a, per_square, high);
  }
  static HWY_INLINE Vector<W> fall(Vector<W> a, Vector<W>) {
    // The first term, of 1/2, is exact, and the rest is rounded with it.
    const auto first = hn::Mul(a, hn::Set(Tag<W>(), C::kFallOver[0]));
    const auto over = hn::MulAdd(hn::Mul(a, a), polynomial<W>(behind_first(C::kFallOver), a), first);
    return hn::Div(over, polynomial<W>(C::kFallUnder, a));
  }
  static HWY_INLINE Vector<W> slope(Vector<W> a, Vector<W>) {
    const Tag<W> d;
    const auto rest = hn::Add(hn::Sub(hn::Set(d, C::kZero), a), hn::Set(d, C::kZeroLow));
    return hn::Div(hn::Mul(rest, polynomial<W>(C::kSlopeOver, a)), polynomial<W>(C::kSlopeUnder, a));
  }
};

// The same of GELU by tanh: x * sigmoid(u), u = 2 sqrt(2 / pi) * (x + 0.044715 x^3), E = exp(-|u|).
template <class W, bool kBrief>
struct ByTanh {
  static constexpr W kReach = sizeof(W) == 4 ? W(9.8) : W(20.9);
  static constexpr W kFar = sizeof(W) == 4 ? W(11) : W(22);
  // u = x * (kLine + kCube * x^2), in units of 1 and, as high and low part, of -ln 2. The high part of the latter's
  // line has so few bits that its difference from the sum is exact.
  static constexpr double kLine = 0x1.9884533d43651p+0, kCube = 0x1.2444f2a4d8b4bp-4;
  static constexpr W kLineHigh = sizeof(W) == 4 ? W(-0x1.26aecp+1) : W(-0x1.26aec21bce75p+1);
  static constexpr W kLineLow = sizeof(W) == 4 ? W(-0x1.0de73ap-22) : W(-0x1.2976942cda18ap-48);
  static constexpr W kCubeHigh = static_cast<W>(-0x1.a5a7cf7572a98p-4);
  static constexpr W kCubeLow = sizeof(W) == 4 ? W(0x1.151aaep-29) : W(0x1.b91c940e4cfcfp-58);

  static HWY_INLINE void exponent(Vector<W> a, Vector<W>& high, Vector<W>& low) {
    const Tag<W> d;
    const auto square = hn::Mul(a, a), line = hn::Set(d, kLineHigh), cube = hn::Set(d, kCubeHigh);
    high = hn::MulAdd(square, cube, line);
    const auto lost = hn::MulAdd(hn::MulSub(a, a, square), cube, hn::Set(d, kLineLow));
    low = hn::MulAdd(square, hn::Set(d, kCubeLow), lost);
    low = hn::Add(low, hn::MulAdd(square, cube, hn::Sub(line, high)));
  }
  static HWY_INLINE Vector<W> fall(Vector<W> a, Vector<W> e) { return hn::Div(a, hn::Add(hn::Set(Tag<W>(), W{1}), e)); }
  static HWY_INLINE Vector<W> slope(Vector<W> a, Vector<W> e) {
    const Tag<W> d;
    const auto sum = hn::Add(hn::Set(d, W{1}), e);
    const auto rise =
        hn::MulAdd(hn::Mul(a, a), hn::Set(d, static_cast<W>(3 * kCube)), hn::Set(d, static_cast<W>(kLine)));
    return hn::Div(hn::NegMulAdd(a, rise, sum), hn::Mul(sum, sum));
  }
};

// A power as scale * (1 + rest), so that what is multiplied by it is rounded once.
template <class W>
struct Power {
  Vector<W> scale, rest;

  HWY_INLINE Power() {}  // as Pack's
  HWY_INLINE Power(Vector<W> of_scale, Vector<W> of_rest) : scale(of_scale), rest(of_rest) {}
  HWY_INLINE Vector<W> value() const { return hn::MulAdd(scale, rest, scale); }
  HWY_INLINE Vector<W> unscaled(Vector<W> factor) const { return hn::MulAdd(factor, rest, factor); }
};

// power[k] = 2^(a[k] * (high[k] + low[k])).
template <bool kBrief, class W, size_t kN>
HWY_INLINE void powers_of_products(const Vector<W>* a, const Vector<W>* high, const Vector<W>* low, Power<W>* power) {
  Vector<W> n[kN], f[kN], scale[kN];
  const auto magic = hn::Set(Tag<W>(), ExpConstants<W>::kToInteger);
  each<kN>([&](size_t k) DESCEND_INLINED { n[k] = hn::Sub(hn::MulAdd(a[k], high[k], magic), magic); });
  each<kN>([&](size_t k) DESCEND_INLINED { f[k] = hn::MulSub(a[k], high[k], n[k]); });
  if constexpr (!kBrief) each<kN>([&](size_t k) DESCEND_INLINED { f[k] = hn::MulAdd(a[k], low[k], f[k]); });
  powers_of_two<W, kN>(std::array{W{1}}, n, f, scale);
  each<kN>([&](size_t k) DESCEND_INLINED {
    if constexpr (kBrief) {
      power[k] = {scale[k], hn::Mul(f[k], polynomial<W>(behind_first(kBriefPowerOfTwo), f[k]))};
    } else {
      power[k] = {scale[k], hn::Mul(f[k], polynomial<W>(behind_first(kPowerOfTwo<W>), f[k]))};
    }
  });
}

// quotient(a, E) * E of any x that is not near 0, however small the result: by 2^(t / 2), twice.
template <class Form, bool kBrief, class W, class F>
HWY_INLINE Vector<W> careful_fall(Vector<W> x, F quotient) {
  const Tag<W> d;
  const auto far = hn::Set(d, Form::kFar), half = hn::Set(d, W{0.5}), magnitude = hn::Abs(x);
  const auto a = hn::IfThenElse(hn::Gt(magnitude, far), far, magnitude);  // a NaN stays
  Vector<W> high, low;
  Power<W> power;
  Form::exponent(a, high, low);
  high = hn::Mul(high, half), low = hn::Mul(low, half);
  powers_of_products<kBrief, W, 1>(&a, &high, &low, &power);
  const auto root = power.value();
  return hn::Mul(hn::Mul(quotient(a, hn::Mul(root, root)), root), root);
}

// As the formula has it, GELU is NaN at -infinity, and the slope at both infinities.
template <class Form, bool kBrief, class W>
HWY_NOINLINE Vector<W> careful_gelu(Vector<W> x) {
  const Tag<W> d;
  const auto fall =
      careful_fall<Form, kBrief, W>(x, [](Vector<W> a, Vector<W> e) DESCEND_INLINED { return Form::fall(a, e); });
  const auto is_lowest = hn::Eq(x, hn::Set(d, -std::numeric_limits<W>::infinity()));
  const auto known = hn::CopySign(hn::Sub(hn::IfThenElseZero(hn::Gt(x, hn::Zero(d)), x), fall), x);
  return hn::IfThenElse(is_lowest, splat(std::numeric_limits<W>::quiet_NaN()), known);
}
template <class Form, bool kBrief, class W>
HWY_NOINLINE Vector<W> careful_gelu_slope(Vector<W> x) {
  const Tag<W> d;
  const auto s =
      careful_fall<Form, kBrief, W>(x, [](Vector<W> a, Vector<W> e) DESCEND_INLINED { return Form::slope(a, e); });
  const auto known = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), s, hn::Sub(hn::Set(d, W{1}), s));
  return hn::IfThenElse(hn::IsFinite(x), known, splat(std::numeric_limits<W>::quiet_NaN()));
}

// Magnitudes of x, and E of each.
template <class Form, bool kBrief, class W, size_t kN>
HWY_INLINE void gelu_powers(const Vector<W>* x, Vector<W>* a, Power<W>* power) {
  Vector<W> high[kN], low[kN];
  each<kN>([&](size_t k) DESCEND_INLINED { a[k] = hn::Abs(x[k]); });
  each<kN>([&](size_t k) DESCEND_INLINED { Form::exponent(a[k], high[k], low[k]); });
  powers_of_products<kBrief, W, kN>(a, high, low, power);
}

template <class Form, bool kBrief, class W, size_t kN>
HWY_INLINE void gelu(const Vector<W>* x, Vector<W>* y) {
  const Tag<W> d;
  const auto reach = hn::Set(d, Form::kReach);
  Vector<W> a[kN];
  Power<W> power[kN];
  gelu_powers<Form, kBrief, W, kN>(x, a, power);
  each<kN>([&](size_t k) DESCEND_INLINED {
    const auto above = hn::Max(x[k], hn::Zero(d));  // of -0 either zero
    const auto fall = power[k].unscaled(Form::fall(a[k], power[k].value()));
    y[k] = hn::CopySign(hn::NegMulAdd(fall, power[k].scale, above), x[k]);
  });
  if (HWY_LIKELY((all_within<W, kN>(x, reach)))) return;
  each<kN>([&](size_t k) DESCEND_INLINED {
    y[k] = hn::IfThenElse(hn::Le(a[k], reach), y[k], careful_gelu<Form, kBrief, W>(x[k]));
  });
}

template <class Form, bool kBrief, class W, size_t kN>
HWY_INLINE void gelu_slopes(const Vector<W>* x, Vector<W>* slope) {
  const Tag<W> d;
  const auto one = hn::Set(d, W{1}), reach = hn::Set(d, Form::kReach);
  Vector<W> a[kN];
  Power<W> power[kN];
  gelu_powers<Form, kBrief, W, kN>(x, a, power);
  each<kN>([&](size_t k) DESCEND_INLINED {
    const auto s = power[k].unscaled(Form::slope(a[k], power[k].value()));
    slope[k] =
        hn::IfThenElse(hn::Lt(x[k], hn::Zero(d)), hn::Mul(s, power[k].scale), hn::NegMulAdd(s, power[k].scale, one));
  });
  if (HWY_LIKELY((all_within<W, kN>(x, reach)))) return;
  each<kN>([&](size_t k) DESCEND_INLINED {
    slope[k] = hn::IfThenElse(hn::Le(a[k], reach), slope[k], careful_gelu_slope<Form, kBrief, W>(x[k]));
  });
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
