// Products with sigmoid and with the slope of swish, from one exp, for gated units.
#pragma once

#include <limits>

#include "kernels/simd/swish-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// |u| within which exp(-u), and what is made of it, stays normal.
template <class W>
inline constexpr W kSigmoidReach = kLargestPower<W> * static_cast<W>(kLn2);

template <class W>
HWY_NOINLINE Vector<W> careful_sigmoid(Vector<W> u) {
  const Tag<W> d;
  const auto one = hn::Set(d, W{1});
  const auto e = exp<W>(hn::Neg(bounded_magnitude<W>(u)));
  return hn::Div(hn::IfThenElse(hn::Lt(u, hn::Zero(d)), e, one), hn::Add(one, e));
}

// power[k] = exp(-u[k]) of u within the reach. kBrief: as exact as elements of 16 bits can show.
template <bool kBrief, class W, size_t kN>
HWY_INLINE void powers_of_negatives(const Vector<W>* u, Vector<W>* power) {
  const Tag<W> d;
  constexpr auto kHigh = static_cast<W>(-kPerLn2High);
  if constexpr (kBrief) {
    each<kN>([&](size_t k) DESCEND_INLINED { power[k] = hn::Mul(u[k], hn::Set(d, kHigh)); });
    brief_powers_of_two<kN>(power, power);
  } else {
    constexpr auto kLow = static_cast<W>(-kPerLn2High - static_cast<double>(kHigh) - kPerLn2Low);
    powers_of_two<W, kN>(u, hn::Set(d, kHigh), hn::Set(d, kLow), power);
  }
}

// Factors are multiplied the larger one first: nothing overflows or becomes 0 on the way to a product that does not.
template <class V>
HWY_INLINE void by_size(V a, V b, V& larger, V& smaller) {
  const auto is_b = hn::Lt(hn::Abs(a), hn::Abs(b));
  larger = hn::IfThenElse(is_b, b, a);
  smaller = hn::IfThenElse(is_b, a, b);
}

// result[k] = sigmoid(u[k]) * a[k] * b[k], power as above.
template <class W, size_t kN>
HWY_INLINE void times_sigmoids(const Vector<W>* u, const Vector<W>* power, const Vector<W>* a, const Vector<W>* b,
                               Vector<W>* result) {
  const Tag<W> d;
  const auto one = hn::Set(d, W{1}), reach = hn::Set(d, kSigmoidReach<W>);
  Vector<W> larger[kN], smaller[kN];
  each<kN>([&](size_t k) DESCEND_INLINED { by_size(a[k], b[k], larger[k], smaller[k]); });
  each<kN>([&](size_t k) DESCEND_INLINED { result[k] = hn::Div(larger[k], hn::Add(one, power[k])); });
  if (HWY_UNLIKELY(!(all_within<W, kN>(u, reach)))) {
    each<kN>([&](size_t k) DESCEND_INLINED {
      const auto careful = hn::Mul(careful_sigmoid<W>(u[k]), larger[k]);
      result[k] = hn::IfThenElse(hn::Le(hn::Abs(u[k]), reach), result[k], careful);
    });
  }
  each<kN>([&](size_t k) DESCEND_INLINED { result[k] = hn::Mul(result[k], smaller[k]); });
}

// result[k] = a[k] * b[k] times the slope of swish at u[k], sig * (1 + u * (1 - sig)), which is NaN at an infinite u,
// as this formula is. The slope is at most 1.1: half of it lets nothing overflow on the way.
template <class W, size_t kN>
HWY_INLINE void times_slopes(const Vector<W>* u, const Vector<W>* power, const Vector<W>* a, const Vector<W>* b,
                             Vector<W>* result) {
  const Tag<W> d;
  const auto one = hn::Set(d, W{1}), half = hn::Set(d, W{0.5}), reach = hn::Set(d, kSigmoidReach<W>);
  Vector<W> sig[kN], slope[kN];
  each<kN>([&](size_t k) DESCEND_INLINED { sig[k] = hn::Div(one, hn::Add(one, power[k])); });
  // Below 0, where the slope has its zero, 1 - sig is exact enough, and u times it must not be rounded before 1 is
  // added. Above 0 1 - sig would cancel, and one rounding less counts for more.
  each<kN>([&](size_t k) DESCEND_INLINED {
    const auto below = hn::Mul(hn::MulAdd(u[k], hn::Sub(one, sig[k]), one), sig[k]);
    const auto above = hn::MulAdd(hn::Mul(u[k], hn::Mul(power[k], sig[k])), sig[k], sig[k]);
    slope[k] = hn::IfThenElse(hn::Lt(u[k], hn::Zero(d)), below, above);
  });
  if (HWY_UNLIKELY(!(all_within<W, kN>(u, reach)))) {
    each<kN>([&](size_t k) DESCEND_INLINED {
      const auto nan = splat(std::numeric_limits<W>::quiet_NaN());
      const auto careful = hn::IfThenElse(hn::IsFinite(u[k]), careful_slope<W>(u[k]), nan);
      slope[k] = hn::IfThenElse(hn::Le(hn::Abs(u[k]), reach), slope[k], careful);
    });
  }
  each<kN>([&](size_t k) DESCEND_INLINED {
    Vector<W> larger, smaller;
    by_size(a[k], b[k], larger, smaller);
    const auto product = hn::Mul(hn::Mul(hn::Mul(slope[k], half), larger), smaller);
    result[k] = hn::Mul(product, hn::Set(d, W{2}));
  });
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
