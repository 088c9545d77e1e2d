// Swish, z * sigmoid(s * z), and its slope, from one exp and one division; and where group norm finds its coefficients.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <type_traits>

#include "kernels/simd/exp-inl.h"
#include "kernels/simd/pack-inl.h"

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

// Takes each of some numbers `times` times, one after the other: a group's for each of its channels, a channel's for
// each of its elements.
template <class W>
class Repeat {
  using D = Tag<W>;
  using DI = hn::RebindToSigned<D>;
  using I = hn::TFromD<DI>;
  static constexpr int64_t kLanes = kVectorLanes<W>;

 public:
  HWY_INLINE explicit Repeat(int64_t times) : times_(times), whole_(kLanes / times), rest_(kLanes % times) {
    if (times >= kLanes) return;
    for (int64_t phase = 0; phase < times; ++phase) {
      I number = 0;
      for (int64_t lane = 0, place = phase; lane < kLanes; ++lane) {
        indices_[phase * kLanes + lane] = number;
        if (++place == times) ++number, place = 0;
      }
    }
  }

  // n numbers at `to`, whole times of each, from others at `from` that are a vector longer than what it takes. `to` is
  // aligned, and up to a vector behind the n numbers is written over.
  HWY_INLINE void operator()(const W* from, int64_t n, W* to) const {
    const D d;
    if (times_ >= kLanes) {  // a number fills vectors of its own
      for (const W* end = to + n; to < end; to += times_) {
        const auto value = splat(*from++);
        for (int64_t j = 0; j < times_ - kLanes; j += kLanes) hn::StoreU(value, d, to + j);
        hn::StoreU(value, d, to + times_ - kLanes);
      }
      return;
    }
    int64_t phase = 0;
    for (int64_t j = 0; j < n; j += kLanes) {
      const auto indices = hn::IndicesFromVec(d, hn::Load(DI(), indices_ + phase * kLanes));
      hn::Store(hn::TableLookupLanes(hn::LoadU(d, from), indices), d, to + j);
      const bool next = phase + rest_ >= times_;
      phase += next ? rest_ - times_ : rest_;
      from += next ? whole_ + 1 : whole_;
    }
  }

 private:
  HWY_ALIGN I indices_[kLanes * kLanes];
  int64_t times_;
  int64_t whole_, rest_;  // a vector takes so many numbers as often as they come, and the next one so often
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

// Vectors that are taken through the long chain of operations side by side, step by step: one alone would wait for each
// result, and the processor looks too few instructions ahead to do this by itself.
inline constexpr size_t kAbreastVectors = 4;
template <class W>
inline constexpr size_t kAbreastPacks = HWY_MAX(1, kAbreastVectors / kPackVectors<W>);

// Runs body(extent, packs, j) over columns [begin, end), so many packs at a time.
template <size_t kPacks>
using Packs = std::integral_constant<size_t, kPacks>;
template <class W, size_t kPacks = kAbreastPacks<W>, class F>
HWY_INLINE void over_packs(int64_t begin, int64_t end, F body) {
  constexpr int64_t kStep = kPackLanes<W>, kStride = kPacks * kStep;
  int64_t j = begin;
  for (; j + kStride <= end; j += kStride) body(Full(), Packs<kPacks>(), j);
  const Part rest{static_cast<size_t>(end - j)};
  if (kPacks > 1 && end - j > kStep) {
    body(rest, Packs<kPacks>(), j);
  } else if (end > j) {
    body(rest, Packs<1>(), j);
  }
}

// What pack i has of an extent that goes over several.
template <class W>
HWY_INLINE Full part_of(Full all, size_t) {
  return all;
}
template <class W>
HWY_INLINE Part part_of(Part part, size_t i) {
  const size_t first = i * kPackLanes<W>;
  return Part{part.n > first ? part.n - first : 0};
}

// ---- The quick way, for all but extreme elements: with E = exp(-u), sigmoid(u) = 1 / (1 + E), whatever the sign of u.
//
// E = 2^t = 2^n * 2^f, n the integer nearest to t.

// |t| within which 2^t, and what is made of it, stays normal. The brief way squares it.
template <class W>
inline constexpr W kLargestPower = sizeof(W) == 4 ? W{120} : W{1000};
inline constexpr float kLargestBriefPower = 60.0f;

inline constexpr double kLn2 = 0x1.62e42fefa39efp-1;
inline constexpr double kPerLn2High = 0x1.71547652b82fep+0, kPerLn2Low = 0x1.777d0ffda0d24p-56;

// 2^f = p(f) for |f| <= 1/2, lowest power first: exp's polynomial in units of ln 2.
template <class W>
constexpr auto power_of_two() {
  using C = ExpConstants<W>;
  std::array<W, std::size(C::kP) + 2> p{W{1}, static_cast<W>(kLn2)};
  double unit = kLn2;
  for (size_t i = 0; i < std::size(C::kP); ++i) {
    unit *= kLn2;
    p[i + 2] = static_cast<W>(unit * static_cast<double>(C::kP[i]));
  }
  return p;
}
template <class W>
inline constexpr auto kPowerOfTwo = power_of_two<W>();

template <class W, size_t kN, size_t kCount>
HWY_INLINE void powers_of_two(const std::array<W, kCount>& p, const Vector<W>* n, const Vector<W>* f,
                              Vector<W>* power) {
  const Tag<W> d;
  each<kN>([&](size_t k) DESCEND_INLINED { power[k] = hn::Set(d, p[kCount - 1]); });
  each<kCount - 1>([&](size_t i) DESCEND_INLINED {
    each<kN>([&](size_t k) DESCEND_INLINED { power[k] = hn::MulAdd(power[k], f[k], hn::Set(d, p[kCount - 2 - i])); });
  });
#if HWY_TARGET == HWY_AVX3
  if constexpr (sizeof(W) == 4) {
    each<kN>([&](size_t k)
                 DESCEND_INLINED { power[k] = Vector<W>{_mm512_maskz_scalef_ps(0xFFFF, power[k].raw, n[k].raw)}; });
  } else {
    each<kN>([&](size_t k)
                 DESCEND_INLINED { power[k] = Vector<W>{_mm512_maskz_scalef_pd(0xFF, power[k].raw, n[k].raw)}; });
  }
#else
  using C = ExpConstants<W>;
  const Tag<typename C::Integer> di;
  const auto magic = hn::Set(d, C::kToInteger + static_cast<W>(C::kBias));  // leaves n and the bias in the low bits
  each<kN>([&](size_t k) DESCEND_INLINED {
    const auto exponent = hn::ShiftLeft<C::kMantissaBits>(hn::BitCast(di, hn::Add(n[k], magic)));
    power[k] = hn::Mul(power[k], hn::BitCast(d, exponent));
  });
#endif
}

// power[k] = 2^(v[k] * (high + low)), to the last bits.
template <class W, size_t kN>
HWY_INLINE void powers_of_two(const Vector<W>* v, Vector<W> high, Vector<W> low, Vector<W>* power) {
  const auto magic = hn::Set(Tag<W>(), ExpConstants<W>::kToInteger);
  Vector<W> n[kN], f[kN];
  each<kN>([&](size_t k) DESCEND_INLINED { n[k] = hn::MulAdd(v[k], high, magic); });
  each<kN>([&](size_t k) DESCEND_INLINED { n[k] = hn::Sub(n[k], magic); });
  each<kN>([&](size_t k) DESCEND_INLINED { f[k] = hn::MulSub(v[k], high, n[k]); });
  each<kN>([&](size_t k) DESCEND_INLINED { f[k] = hn::MulAdd(v[k], low, f[k]); });
  powers_of_two<W, kN>(kPowerOfTwo<W>, n, f, power);
}

// power[k] = 2^t[k], as exact as elements of 16 bits can show.
template <size_t kN>
HWY_INLINE void brief_powers_of_two(const Vector<float>* t, Vector<float>* power) {
  Vector<float> n[kN], f[kN];
  each<kN>([&](size_t k) DESCEND_INLINED { n[k] = nearest_integer(t[k]); });
  each<kN>([&](size_t k) DESCEND_INLINED { f[k] = hn::Sub(t[k], n[k]); });
  powers_of_two<float, kN>(kBriefPowerOfTwo, n, f, power);
}

// Whether the quick way holds for all these vectors. Which way an element goes is up to itself alone: where some are
// extreme, careful() goes over them all and keeps what was right. A NaN is extreme: compared by its bits, it is larger
// than any number, where Max would lose it.
template <class W, size_t kN>
HWY_INLINE bool all_within(const Vector<W>* v, Vector<W> reach) {
  const Tag<W> d;
  const hn::RebindToSigned<Tag<W>> di;
  auto largest = hn::BitCast(di, hn::Abs(v[0]));
  each<kN - 1>([&](size_t k) DESCEND_INLINED { largest = hn::Max(largest, hn::BitCast(di, hn::Abs(v[k + 1]))); });
  return hn::AllTrue(d, hn::Le(hn::BitCast(d, largest), reach));
}

// ---- The careful way, for any element. No difference of nearly equal numbers and no large exp: with e = exp(-|u|),
// the sigmoids of |u| and -|u| are 1 / (1 + e) and e / (1 + e), both to the last bits.

// |u| beyond which sigmoid is 0 or 1 whatever it is multiplied by.
template <class W>
inline constexpr W kSaturated = sizeof(W) == 4 ? W{128} : W{750};

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

// z * sigmoid(u); are_finite: where z was computed from numbers that are, and at worst has overflowed.
template <class W>
HWY_NOINLINE Vector<W> careful_swish(Vector<W> z, Vector<W> u, hn::Mask<Tag<W>> are_finite) {
  const Tag<W> d;
  const auto one = hn::Set(d, W{1});
  const auto e = exp<W>(hn::Neg(bounded_magnitude<W>(u)));
  const auto factor = hn::IfThenElse(hn::Lt(u, hn::Zero(d)), e, one);
  const auto is_zero = hn::And(hn::Eq(factor, hn::Zero(d)), are_finite);
  return hn::Div(hn::IfThenZeroElse(is_zero, hn::Mul(z, factor)), hn::Add(one, e));
}

// The slope of swish at u.
template <class W>
HWY_NOINLINE Vector<W> careful_slope(Vector<W> u) {
  const Tag<W> d;
  const auto one = hn::Set(d, W{1});
  const auto magnitude = bounded_magnitude<W>(u), e = exp<W>(hn::Neg(magnitude));
  const auto above = hn::Div(one, hn::Add(one, e)), below = hn::Mul(e, above);
  const auto sigmoid = hn::IfThenElse(hn::Lt(u, hn::Zero(d)), below, above);
  return hn::MulAdd(hn::CopySign(magnitude, u), hn::Mul(below, above), sigmoid);
}

// ---- Swish and its slope.

// What the sigmoid of s * z needs of s.
template <class W, bool kBrief>
struct Steepness {
  explicit HWY_INLINE Steepness(W s) : scale(splat(s)) {
    const double exact = -static_cast<double>(s) * kPerLn2High;
    const double rest = std::fma(-static_cast<double>(s), kPerLn2High, -exact) - static_cast<double>(s) * kPerLn2Low;
    constexpr double kLargest = static_cast<double>(std::numeric_limits<W>::max());
    const bool fits = std::abs(exact) <= kLargest;
    const W rounded = fits ? static_cast<W>(exact) : W{0};
    high = splat(rounded);
    low = splat(fits ? static_cast<W>(exact - static_cast<double>(rounded) + rest) : W{0});
    const double most = static_cast<double>(kLargestPower<W>) / std::abs(exact);
    reach = splat(fits ? static_cast<W>(std::min(most, kLargest)) : W{-1});
  }
  Vector<W> scale;
  Vector<W> high, low;  // -s / ln 2
  Vector<W> reach;      // |z| within which the quick way holds
};

// z[k] = z[k] * sigmoid(s * z[k]); are_finite(k) as careful_swish() has it.
template <bool kBrief, class W, size_t kN, class F>
HWY_INLINE void swish(const Steepness<W, kBrief>& s, Vector<W>* z, F are_finite) {
  const auto one = hn::Set(Tag<W>(), W{1});
  Vector<W> power[kN], result[kN];
  if constexpr (kBrief) {
    each<kN>([&](size_t k) DESCEND_INLINED { power[k] = hn::Mul(z[k], s.high); });
    brief_powers_of_two<kN>(power, power);
  } else {
    powers_of_two<W, kN>(z, s.high, s.low, power);
  }
  each<kN>([&](size_t k) DESCEND_INLINED { result[k] = hn::Div(z[k], hn::Add(one, power[k])); });
  if (HWY_UNLIKELY(!(all_within<W, kN>(z, s.reach)))) {
    each<kN>([&](size_t k) DESCEND_INLINED {
      const auto careful = careful_swish<W>(z[k], hn::Mul(s.scale, z[k]), are_finite(k));
      result[k] = hn::IfThenElse(hn::Le(hn::Abs(z[k]), s.reach), result[k], careful);
    });
  }
  each<kN>([&](size_t k) DESCEND_INLINED { z[k] = result[k]; });
}

// slope[k] = sig * (1 + u * (1 - sig)), sig = sigmoid(u): within a few units in the last place. With kBrief u
// is given in units of -ln 2, and the slope is as exact as elements of 16 bits can show: (1 + E (1 + u)) / (1 + E)^2
// has fewer operations, of which more round. A u that is not finite tells its slope only where it was computed from
// numbers that are, the lanes are_finite(k) of vector k: it is too large, or NaN where that was multiplied by a scale
// of 0. Elsewhere the slope is NaN.
template <bool kBrief, class W, size_t kN, class F>
HWY_INLINE void swish_slopes(const Vector<W>* u, Vector<W>* slope, F are_finite) {
  const Tag<W> d;
  const auto one = hn::Set(d, W{1});
  const auto reach = hn::Set(d, kBrief ? W{kLargestBriefPower} : kLargestPower<W> * static_cast<W>(kLn2));
  Vector<W> power[kN], a[kN], b[kN], result[kN];
  if constexpr (kBrief) {
    brief_powers_of_two<kN>(u, power);
    each<kN>([&](size_t k) DESCEND_INLINED { b[k] = hn::NegMulAdd(u[k], hn::Set(d, static_cast<W>(kLn2)), one); });
    each<kN>([&](size_t k) DESCEND_INLINED { a[k] = hn::Add(one, power[k]); });
    each<kN>([&](size_t k) DESCEND_INLINED { b[k] = hn::MulAdd(power[k], b[k], one); });
    each<kN>([&](size_t k) DESCEND_INLINED { a[k] = hn::Mul(a[k], a[k]); });
    each<kN>([&](size_t k) DESCEND_INLINED { result[k] = hn::Div(b[k], a[k]); });
  } else {
    const auto high = static_cast<W>(-kPerLn2High);
    const auto low = static_cast<W>(-kPerLn2High - static_cast<double>(high) - kPerLn2Low);
    powers_of_two<W, kN>(u, hn::Set(d, high), hn::Set(d, low), power);
    each<kN>([&](size_t k) DESCEND_INLINED { a[k] = hn::Div(one, hn::Add(one, power[k])); });
    each<kN>([&](size_t k) DESCEND_INLINED { b[k] = hn::Mul(power[k], a[k]); });
    each<kN>([&](size_t k) DESCEND_INLINED { b[k] = hn::Mul(b[k], a[k]); });
    each<kN>([&](size_t k) DESCEND_INLINED { result[k] = hn::MulAdd(u[k], b[k], a[k]); });
  }
  if (HWY_UNLIKELY(!(all_within<W, kN>(u, reach)))) {
    const auto unit = hn::Set(d, static_cast<W>(kBrief ? -kLn2 : 1.0));
    each<kN>([&](size_t k) DESCEND_INLINED {
      const auto careful = careful_slope<W>(hn::Mul(unit, hn::IfThenZeroElse(hn::IsNaN(u[k]), u[k])));
      const auto known = hn::IfThenElse(are_finite(k), careful, splat(std::numeric_limits<W>::quiet_NaN()));
      result[k] = hn::IfThenElse(hn::Le(hn::Abs(u[k]), reach), result[k], known);
    });
  }
  each<kN>([&](size_t k) DESCEND_INLINED { slope[k] = result[k]; });
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
