// GELU and its slope, by erf and by tanh, to the last bits for every x.
//
// With a = |x|, GELU is max(x, 0) - fall(a), and its slope is s(a) where x < 0 and 1 - s(a) elsewhere. Both fall and s
// are a quotient times E = 2^-t(a), which is exp(-a^2 / 2) by erf and exp(-|u|) by tanh. So nothing cancels where x <
// 0, and where x > 0 what is taken away is small.
#if defined(DESCEND_KERNELS_GELU_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DESCEND_KERNELS_GELU_INL_H_
#undef DESCEND_KERNELS_GELU_INL_H_
#else
#define DESCEND_KERNELS_GELU_INL_H_
#endif

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <type_traits>

#include "kernels/swish-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// The factor of E in fall(a) and in s: quotients of two polynomials, lowest power first, minimax up to kFar. s is 0 at
// a = kZero, so that its quotient is taken of the rest and multiplied by kZero - a. kBrief: as exact as elements of 16
// bits can show.
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
  // Relative errors 2^-26.3 and 2^-25.9.
  static constexpr float kFallOver[] = {0x1p-1f, 0x1.ca8dbcp-2f, 0x1.856736p-3f, 0x1.5fab26p-5f, 0x1.239ecap-8f};
  static constexpr float kFallUnder[] = {0x1p+0f,        0x1.b1891p+0f,  0x1.3b42a6p+0f,
                                         0x1.f362dcp-2f, 0x1.b8c1c6p-4f, 0x1.6d7e62p-7f};
  static constexpr float kSlopeOver[] = {0x1.67cea4p-1f, 0x1.a1e28ap-1f, 0x1.ac38ccp-2f, 0x1.bc7166p-4f,
                                         0x1.8fac92p-7f};
  static constexpr float kSlopeUnder[] = {0x1.0e8p+0f, 0x1.8202aep+0f, 0x1.bfa2bcp-1f, 0x1.fdf334p-3f, 0x1.f4ebb8p-6f};
};

template <>
struct NormalTail<float, true> {
  static constexpr float kZero = 0x1.80ead2p-1f, kZeroLow = -0x1.a03fd4p-27f;
  // Relative errors 2^-21.2 and 2^-20.6.
  static constexpr float kFallOver[] = {0x1.fffff2p-2f, 0x1.73833cp-2f, 0x1.eb969cp-4f, 0x1.19331ep-6f};
  static constexpr float kFallUnder[] = {0x1p+0f, 0x1.86028p+0f, 0x1.e95772p-1f, 0x1.33db14p-2f, 0x1.6078bep-5f};
  static constexpr float kSlopeOver[] = {0x1.a553cp-1f, 0x1.8e2cb4p-1f, 0x1.384318p-2f, 0x1.8486f4p-5f};
  static constexpr float kSlopeUnder[] = {0x1.3ccp+0f, 0x1.7f7c22p+0f, 0x1.59721ep-1f, 0x1.e6fb8p-4f};
};

template <>
struct NormalTail<double, false> {
  static constexpr double kZero = 0x1.80ead197f00b4p-1, kZeroLow = -0x1.13e74c58cada8p-56;
  // Relative errors 2^-54.3 and 2^-54.8.
  static constexpr double kFallOver[] = {0x1p-1,
                                         0x1.a7a188c00991dp-1,
                                         0x1.5b851ae7d6a44p-1,
                                         0x1.6d358f13fc439p-2,
                                         0x1.0db33d95f9e1cp-3,
                                         0x1.2326bb292b4c3p-5,
                                         0x1.d0aec6b6847eep-8,
                                         0x1.0effb995b596p-10,
                                         0x1.bbd1f1c4f1b6ap-14,
                                         0x1.d001fab4a6523p-18,
                                         0x1.dc13ae493e034p-23};
  static constexpr double kFallUnder[] = {0x1p+0,
                                          0x1.39f1d92f55a23p+1,
                                          0x1.684069e9e71b3p+1,
                                          0x1.ff9fdb60b14b8p+0,
                                          0x1.f4c52b544e7e5p-1,
                                          0x1.63ae6907fdd4p-2,
                                          0x1.77604292a688p-4,
                                          0x1.2786303e49446p-6,
                                          0x1.55eb1fd2ca7fdp-9,
                                          0x1.16b4a80dde5b8p-12,
                                          0x1.22c612d74d42fp-16,
                                          0x1.2a5641c27e5p-21};
  static constexpr double kSlopeOver[] = {0x1.a9513fad5b372p-1,  0x1.aa280ad059a5bp+0, 0x1.9aea71bf4dabdp+0,
                                          0x1.efdc2cc192195p-1,  0x1.9c73010703596p-2, 0x1.ed600a5e3b173p-4,
                                          0x1.ae1357300b412p-6,  0x1.0e72455fd17d5p-8, 0x1.d7b4f2beac83fp-12,
                                          0x1.034cf356a048cp-15, 0x1.13b1c2873b85fp-20};
  static constexpr double kSlopeUnder[] = {0x1.3fcp+0,           0x1.6ad87e823855cp+1, 0x1.7dd8d7178c524p+1,
                                           0x1.ebd3a38b880bep+0, 0x1.ae6b7d5b13c0dp-1, 0x1.0c3f598bf508ep-2,
                                           0x1.e41304ca0d335p-5, 0x1.39a6b78b9ba4ap-7, 0x1.1900d30c4eap-10,
                                           0x1.3cde0aa5a3eap-14, 0x1.59881aaefd937p-19};
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

#endif  // DESCEND_KERNELS_GELU_INL_H_
