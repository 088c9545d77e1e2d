// log of a vector of floats or doubles: our own, as exp is.
#pragma once

#include <iterator>
#include <limits>
#include <numbers>

#include "kernels/simd/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// log(v) = n ln 2 + log(f), f from sqrt(1/2) to sqrt(2); log(f) = 2 u (1 + u^2 / 3 + u^4 / 5 + ...), u = (f - 1) / (f +
// 1). Of what is neither subnormal nor infinite; of 0 -inf, below 0 as it is.
template <class V>
HWY_INLINE V log(V v) {
  using W = hn::TFromV<V>;
  using C = ExpConstants<W>;
  const hn::DFromV<V> d;
  const hn::Rebind<typename C::Integer, decltype(d)> di;
  const auto number = [&](double n) DESCEND_INLINED { return hn::Set(d, static_cast<W>(n)); };
  const auto bits = hn::BitCast(di, v), least = hn::BitCast(di, number(std::numbers::sqrt2 / 2));
  const auto n = hn::ShiftRight<C::kMantissaBits>(hn::Sub(bits, least));
  const auto f = hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<C::kMantissaBits>(n)));
  const auto magic = hn::Set(d, C::kToInteger);
  const auto exponent = hn::Sub(hn::BitCast(d, hn::Add(hn::BitCast(di, magic), n)), magic);
  const auto u = hn::Div(hn::Sub(f, number(1)), hn::Add(f, number(1))), square = hn::Mul(u, u);
  constexpr W kParts[] = {W{1} / 21, W{1} / 19, W{1} / 17, W{1} / 15, W{1} / 13,
                          W{1} / 11, W{1} / 9,  W{1} / 7,  W{1} / 5,  W{1} / 3};
  auto rest = hn::Zero(d);
  each<std::size(kParts)>([&](size_t i) DESCEND_INLINED {
    if (sizeof(W) > 4 || i >= 6) rest = hn::Mul(hn::Add(rest, hn::Set(d, kParts[i])), square);
  });
  const auto twice = hn::Add(u, u);
  const auto low = hn::Add(hn::Mul(twice, rest), hn::Mul(exponent, hn::Set(d, C::kLn2Low)));
  const auto sum = hn::Add(hn::Mul(exponent, hn::Set(d, C::kLn2High)), hn::Add(twice, low));
  const auto none = hn::IfThenElse(hn::Eq(v, hn::Zero(d)), number(-std::numeric_limits<double>::infinity()), v);
  return hn::IfThenElse(hn::Gt(v, hn::Zero(d)), sum, none);
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
