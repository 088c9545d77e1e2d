// Double beside float: vectors of one in the other, and sums of many lanes, down to one number.
#pragma once

#include "kernels/simd/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

template <class W>
HWY_INLINE Vector<double> load_as_double(const W* p) {
  const hn::Rebind<W, Tag<double>> d;
  if constexpr (sizeof(W) == 4) {
    return hn::PromoteTo(Tag<double>(), hn::LoadU(d, p));
  } else {
    return hn::LoadU(d, p);
  }
}

// double to W.
template <class W, class D>
HWY_INLINE hn::Vec<hn::Rebind<W, D>> narrow_double(D, hn::Vec<D> v) {
  if constexpr (sizeof(W) == sizeof(double)) {
    return v;
  } else {
    const hn::Rebind<W, D> d;
#if HWY_TARGET == HWY_SCALAR
    return hn::Set(d, static_cast<W>(hn::GetLane(v)));  // Highway's own has no infinity
#else
    return hn::DemoteTo(d, v);
#endif
  }
}

// double to float on the way to a 16-bit float. Rounded to odd (towards zero, then the last bit set unless exact), so
// that rounding again gives what one rounding would have given.
template <class D>
HWY_INLINE hn::Vec<hn::Rebind<float, D>> round_to_odd(D d, hn::Vec<D> v) {
  const hn::Rebind<uint32_t, D> du;
  const auto nearest = narrow_double<float>(d, v);
  const auto back = hn::PromoteTo(d, nearest);
  const auto bits_of = [&](hn::Mask<D> mask) HWY_ATTR {
    return hn::TruncateTo(du, hn::BitCast(hn::RebindToUnsigned<D>(), hn::VecFromMask(d, mask)));
  };
  const auto away = bits_of(hn::Gt(hn::Abs(back), hn::Abs(v)));  // -1 where it is so
  const auto inexact = hn::ShiftRight<31>(bits_of(hn::Or(hn::Lt(back, v), hn::Gt(back, v))));
  return hn::BitCast(hn::Rebind<float, D>(), hn::Or(hn::Add(hn::BitCast(du, nearest), away), inexact));
}

// A pack of doubles in W. to_odd: float is rounded to odd.
template <class W>
HWY_INLINE Pack<W> narrow_pack(const double* from, bool to_odd) {
  const Tag<double> d;
  Pack<W> pack;
  const auto narrow_vector = [&](size_t i) DESCEND_INLINED {
    const auto v = hn::LoadU(d, from + i * kVectorLanes<double>);
    if constexpr (sizeof(W) == sizeof(double)) {
      return v;
    } else {
      return to_odd ? round_to_odd(d, v) : narrow_double<W>(d, v);
    }
  };
  DESCEND_UNROLL
  for (size_t k = 0; k < kPackVectors<W>; ++k) {
#if HWY_TARGET != HWY_SCALAR
    if constexpr (sizeof(W) < sizeof(double)) {
      pack.v[k] = hn::Combine(Tag<W>(), narrow_vector(2 * k + 1), narrow_vector(2 * k));
    } else
#endif
      pack.v[k] = narrow_vector(k);
  }
  return pack;
}

// And back.
template <class D, class V>
HWY_INLINE hn::Vec<D> widen_to_double(D d, V v) {
  if constexpr (std::is_same_v<V, hn::Vec<D>>) {
    return v;
  } else {
    return hn::PromoteTo(d, v);
  }
}

// ---- The sum of many lanes: lane i + lane i + n/2, again and again.

template <class D>
HWY_INLINE hn::TFromD<D> fold_vector(D, hn::Vec<D> v) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (hn::MaxLanes(D()) > 1) {
    const hn::Half<D> half;
    return fold_vector(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else
#endif
    return hn::GetLane(v);
}

struct Sum {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Add(a, b);
  }
};
struct Largest {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Max(a, b);
  }
};

// As far as one vector.
template <class W, class Op = Sum, size_t kCount>
HWY_INLINE Vector<W> fold_to_vector(Vector<W> (&v)[kCount], Op op = Op()) {
  DESCEND_UNROLL
  for (size_t width = kCount / 2; width > 0; width /= 2) {
    DESCEND_UNROLL
    for (size_t k = 0; k < width; ++k) v[k] = op(v[k], v[k + width]);
  }
  return v[0];
}

template <class W, size_t kCount>
HWY_INLINE W fold_vectors(Vector<W> (&v)[kCount]) {
  return fold_vector(Tag<W>(), fold_to_vector<W>(v));
}

template <class W>
HWY_INLINE W fold(Pack<W> pack) {
  return fold_vectors<W>(pack.v);
}

// A pack's lanes in double: sums of many packs run here, where they lose nothing to rounding.
template <class W>
struct DoubleLanes {
  HWY_INLINE DoubleLanes() {}  // as Pack's
  Vector<double> v[kPackLanes<W> / kVectorLanes<double>];
};

template <class W>
HWY_INLINE DoubleLanes<W> zero_lanes() {
  DoubleLanes<W> lanes;
  for (auto& v : lanes.v) v = hn::Zero(Tag<double>());
  return lanes;
}

// kCount vectors of a pack, or of the front of one, in double.
template <class W, size_t kCount>
HWY_INLINE void to_double(const Vector<W>* v, Vector<double>* to) {
  DESCEND_UNROLL
  for (size_t k = 0; k < kCount; ++k) {
    if constexpr (sizeof(W) == sizeof(double)) {
      to[k] = v[k];
    } else {
#if HWY_TARGET == HWY_SCALAR
      to[k] = hn::PromoteTo(Tag<double>(), v[k]);
#else
      const hn::Half<Tag<float>> half;
      to[2 * k] = hn::PromoteTo(Tag<double>(), hn::LowerHalf(half, v[k]));
      to[2 * k + 1] = hn::PromoteTo(Tag<double>(), hn::UpperHalf(half, v[k]));
#endif
    }
  }
}

template <class W>
HWY_INLINE void add_lanes(const Pack<W>& pack, DoubleLanes<W>& to) {
  DoubleLanes<W> lanes;
  to_double<W, kPackVectors<W>>(pack.v, lanes.v);
  DESCEND_UNROLL
  for (size_t k = 0; k < kPackLanes<W> / kVectorLanes<double>; ++k) to.v[k] = hn::Add(to.v[k], lanes.v[k]);
}

template <class W>
HWY_INLINE double fold(DoubleLanes<W> lanes) {
  return fold_vectors<double>(lanes.v);
}

// to[i] (fresh: =, else +=) from[i]: sums, added in double.
template <class W>
HWY_NOINLINE void add_columns(const W* from, int64_t n, bool fresh, double* to) {
  const Tag<double> d;
  constexpr int64_t kStep = kVectorLanes<double>;
  int64_t i = 0;
  if (fresh) {
    for (; i + kStep <= n; i += kStep) hn::StoreU(load_as_double(from + i), d, to + i);
    for (; i < n; ++i) to[i] = from[i];
  } else {
    for (; i + kStep <= n; i += kStep) hn::StoreU(hn::Add(hn::LoadU(d, to + i), load_as_double(from + i)), d, to + i);
    for (; i < n; ++i) to[i] += from[i];
  }
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
