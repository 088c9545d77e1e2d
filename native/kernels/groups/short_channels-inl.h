// The gradient of group norm where channels are short: vectors run over them, and gamma and beta are there once an
// element.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/groups/group.h"
#include "kernels/rows/prefetch-inl.h"
#include "kernels/rows/spread-inl.h"
#include "kernels/rows/sum_columns-inl.h"
#include "kernels/simd/doubles-inl.h"
#include "kernels/simd/swish-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

template <class W, class Group>
struct Coefficients {
  Each<W> gamma, beta;
  Group mean, rstd;
  Vector<W> scale;
};

// Beta and scale are swish's.
template <class P, class W, class Group>
HWY_INLINE Coefficients<W, Group> coefficients(const P& p, const W* gamma, const W* beta, Group mean, Group rstd) {
  Vector<W> scale = hn::Zero(Tag<W>());
  if constexpr (P::kSwish) scale = splat(finite<W>(scale_of(p)));
  return {Each<W>(gamma), Each<W>(beta), mean, rstd, scale};
}

template <class T, class Extent, class C>
HWY_INLINE Vector<Wide<T>> normalised(Extent extent, const T* x, const C& at, int64_t j, size_t k) {
  return hn::Mul(hn::Sub(load(extent, x + j, k), at.mean.at(extent, j, k)), at.rstd.at(extent, j, k));
}

// use(extent, j, dz, dz * xhat) for every pack of n neighbouring elements, which begins at element j. Without swish dz
// is dy.
template <bool kSwish, class T, class C, class F>
HWY_INLINE void flat_slopes(const T* dy, const T* x, const C& at, int64_t n, F use) {
  using W = Wide<T>;
  constexpr size_t kN = kPackVectors<W>;
  over_packs<W>(0, n, [&](auto extent, auto packs, int64_t j) DESCEND_INLINED {
    constexpr size_t kPacks = decltype(packs)::value, kAll = kPacks * kN;
    const auto each_vector = [&](auto f) HWY_ATTR {
      each<kAll>([&](size_t k) DESCEND_INLINED {
        const size_t pack = k / kN;
        f(k, part_of<W>(extent, pack), j + static_cast<int64_t>(pack * kPackLanes<W>), k % kN);
      });
    };
    Vector<W> xhat[kAll], u[kAll];
    each_vector([&](size_t k, auto part, int64_t c, size_t v) HWY_ATTR { xhat[k] = normalised(part, x, at, c, v); });
    if constexpr (kSwish) {
      each_vector([&](size_t k, auto part, int64_t c, size_t v) HWY_ATTR {
        u[k] = hn::Mul(at.scale, hn::MulAdd(xhat[k], at.gamma.at(part, c, v), at.beta.at(part, c, v)));
      });
      const auto are_finite = [&](size_t k) HWY_ATTR {
        const auto part = part_of<W>(extent, k / kN);
        const int64_t c = j + static_cast<int64_t>(k / kN * kPackLanes<W>);
        return hn::And(hn::And(hn::IsFinite(xhat[k]), hn::IsFinite(at.scale)),
                       hn::And(hn::IsFinite(at.gamma.at(part, c, k % kN)), hn::IsFinite(at.beta.at(part, c, k % kN))));
      };
      swish_slopes<kBriefly<T>, W, kAll>(u, u, are_finite);
    }
    each_vector([&](size_t k, auto part, int64_t c, size_t v)
                    HWY_ATTR { u[k] = kSwish ? hn::Mul(load(part, dy + c, v), u[k]) : load(part, dy + c, v); });
    each<kPacks>([&](size_t i) DESCEND_INLINED {
      Pack<W> dz, dzx;
      each<kN>([&](size_t v) DESCEND_INLINED {
        dz.v[v] = u[i * kN + v];
        dzx.v[v] = hn::Mul(u[i * kN + v], xhat[i * kN + v]);
      });
      use(part_of<W>(extent, i), j + static_cast<int64_t>(i * kPackLanes<W>), dz, dzx);
    });
  });
}

// The sums of short channels, which lie one after the other with kFlatRoom behind them. They are the channels
// themselves where these are of one element.
template <class W>
class ChannelSums {
 public:
  HWY_INLINE explicit ChannelSums(int64_t inner) : inner_(inner) {}

  HWY_INLINE const W* operator()(const W* values, int64_t channels) {
    constexpr int64_t kWorthFolding = 8;
    if (inner_ == 1) return values;
    if (inner_ <= kNarrowColumns || inner_ >= kWorthFolding) {
      sum_tile(values, channels, inner_, sums_);
      return sums_;
    }
    for (int64_t c = 0; c < channels; ++c) {
      const W* value = values + c * inner_;
      W sum = value[0];
      for (int64_t s = 1; s < inner_; ++s) sum += value[s];
      sums_[c] = sum;
    }
    return sums_;
  }

 private:
  const int64_t inner_;
  static_assert(kSmallTile <= kFlatTile);
  HWY_ALIGN W sums_[kFlatTile / 2 + kFoldRows<W>];
};

template <class T, class C>
HWY_INLINE void flat_apply(const T* x, const auto* dz, const C& at, const auto& c1, const auto& c2, int64_t n, T* dx) {
  using W = Wide<T>;
  const auto one_pack = [&](auto extent, int64_t j) HWY_ATTR {
    Pack<W> result;
    DESCEND_UNROLL
    for (size_t k = 0; k < kPackVectors<W>; ++k) {
      const auto xhat = normalised(extent, x, at, j, k);
      const auto part = hn::MulAdd(xhat, c2.at(extent, j, k), c1.at(extent, j, k));
      const auto rest = hn::MulSub(load(extent, dz + j, k), at.gamma.at(extent, j, k), part);
      result.v[k] = hn::Mul(at.rstd.at(extent, j, k), rest);
    }
    store(extent, result, dx + j);
  };
  for_each_pack<W>(0, n, one_pack);
}

// Gamma and beta of neighbouring channels, of a tile at most, once an element.
template <class P>
class TileParameters {
  using T = typename P::Type;
  using W = Wide<T>;

 public:
  HWY_INLINE TileParameters(const P& p, const GradGroup<T>& group)
      : p_(p), gamma_each_(group.gamma_each), beta_each_(group.beta_each), for_elements_(p.shape.inner) {}

  // has_beta: whether beta is asked for.
  template <class Group>
  HWY_INLINE Coefficients<W, Group> operator()(int64_t channel, int64_t channels, bool has_beta, Group mean,
                                               Group rstd) {
    const int64_t inner = p_.shape.inner;
    if (gamma_each_ != nullptr) {
      const W* const beta = P::kSwish ? beta_each_ + channel * inner : nullptr;
      return coefficients(p_, gamma_each_ + channel * inner, beta, mean, rstd);
    }
    for_elements_(p_.gamma + channel, channels * inner, gamma_);
    if (P::kSwish && has_beta) for_elements_(p_.beta + channel, channels * inner, beta_);
    return coefficients<P, W>(p_, gamma_, beta_, mean, rstd);
  }

 private:
  static_assert(kSmallTile <= kFlatTile);
  static_assert(kVectorLanes<W> <= kSpreadByTile);  // or more channels would be read than there may be

  const P& p_;
  const W* const gamma_each_;
  const W* const beta_each_;
  const Repeat<W> for_elements_;
  HWY_ALIGN W gamma_[kFlatTile + kFlatRoom<W>];
  HWY_ALIGN W beta_[kFlatTile + kFlatRoom<W>];
};

// The sum of gamma * values, in double, where nothing overflows: one after the other where there are few, else in
// lanes.
template <class W, class V>
HWY_INLINE double weighted_sum(const W* gamma, const V* values, int64_t n) {
  constexpr int64_t kFew = 8;
  if (n < kFew) {
    double total = 0;
    for (int64_t i = 0; i < n; ++i) total += static_cast<double>(gamma[i]) * static_cast<double>(values[i]);
    return total;
  }
  const Tag<double> d;
  Pack<double> sum = zero_pack<double>();
  for_each_pack<double>(0, n, [&](auto extent, int64_t i) HWY_ATTR {
    each<kPackVectors<double>>([&](size_t k) DESCEND_INLINED {
      const auto weight = widen_to_double(d, load_bits(extent, hn::Rebind<W, Tag<double>>(), gamma + i, k));
      const auto value = widen_to_double(d, load_bits(extent, hn::Rebind<V, Tag<double>>(), values + i, k));
      sum.v[k] = hn::MulAdd(weight, value, sum.v[k]);
    });
  });
  return fold(sum);
}

// Numbers of channels [first, last) once for each of their elements. Up to a vector behind the last one is written
// over: others may spread what follows only if it begins with a vector.
template <class T>
void spread_parameter(const Wide<T>* from, int64_t inner, int64_t first, int64_t last, Wide<T>* to) {
  using W = Wide<T>;
  constexpr int64_t kMost = 512;  // at a time
  HWY_ALIGN W numbers[kMost + kVectorLanes<W>];
  const Repeat<W> for_elements(inner);
  for (int64_t c = first; c < last; c += kMost) {
    const int64_t n = HWY_MIN(kMost, last - c);
    copy_few(from + c, n, numbers);
    for_elements(numbers, n * inner, to + c * inner);
  }
}

// Tiles [first, last) of a group's channels.
template <class P, class T>
HWY_INLINE void flat_channel_sums(const P& p, const GradGroup<T>& group, int64_t first, int64_t last) {
  using W = Wide<T>;
  HWY_ALIGN W products[kFlatTile + kFlatRoom<W>], forgotten[kFlatTile + kFlatRoom<W>];
  const int64_t inner = p.shape.inner, most = tile_channels(p.shape), all = p.shape.group_channels();
  ChannelSums<W> sum_channels(inner);
  TileParameters<P> parameters(p, group);
  const Same<W> mean(group.mean), rstd(group.rstd);
  for (int64_t tile = first; tile < last; ++tile) {
    const int64_t c = tile * most, channels = HWY_MIN(most, all - c), offset = c * inner;
    W* dz = group.dz ? group.dz + tile * tile_pitch<W>(p.shape) : forgotten;
    const auto at = parameters(group.channel + c, channels, true, mean, rstd);
    const int64_t next = offset + channels * inner;
    const T* next_x = tile + 1 < last ? group.x + next : group.next_x;
    const T* next_dy = tile + 1 < last ? group.dy + next : group.next_dy;
    flat_slopes<P::kSwish>(group.dy + offset, group.x + offset, at, channels * inner,
                           [&](auto, int64_t j, const Pack<W>& at_dz, const Pack<W>& at_dzx) DESCEND_INLINED {
                             if (group.ask) {
                               prefetch_pack<prefetch_near>(next_x + j, 0);
                               prefetch_pack<prefetch_near>(next_dy + j, 0);
                               prefetch_pack<prefetch_near>(group.dx + offset + j, 0);
                             }
                             store(Full(), at_dz, dz + j);
                             store(Full(), at_dzx, products + j);
                           });
    const auto add_up = [&](const W* values, const ColumnSums<T>& to) HWY_ATTR {
      const W* sums = sum_channels(values, channels);
      leave_sums(sums, channels, to.from(c), group.fresh, false);
      return weighted_sum(p.gamma + group.channel + c, sums, channels);
    };
    group.dz_sums[tile] = add_up(dz, group.dbeta);
    group.dzx_sums[tile] = add_up(products, group.dgamma);
  }
}

template <class P, class T>
HWY_INLINE void flat_channel_apply(const P& p, const GradGroup<T>& group, int64_t first, int64_t last) {
  using W = Wide<T>;
  HWY_ALIGN W again[kFlatTile + kFlatRoom<W>];
  const int64_t inner = p.shape.inner, most = tile_channels(p.shape), all = p.shape.group_channels();
  TileParameters<P> parameters(p, group);
  const Same<W> c1(group.plane.level), c2(group.plane.tilt), mean(group.mean), rstd(group.rstd);
  for (int64_t tile = first; tile < last; ++tile) {
    const int64_t c = tile * most, channels = HWY_MIN(most, all - c), n = channels * inner, offset = c * inner;
    const auto at = parameters(group.channel + c, channels, group.dz == nullptr, mean, rstd);
    if constexpr (P::kSwish) {
      const W* dz = group.dz ? group.dz + tile * tile_pitch<W>(p.shape) : again;
      if (!group.dz) {
        flat_slopes<true>(group.dy + offset, group.x + offset, at, n,
                          [&](auto, int64_t j, const Pack<W>& at_dz, const Pack<W>&)
                              DESCEND_INLINED { store(Full(), at_dz, again + j); });
      }
      flat_apply(group.x + offset, dz, at, c1, c2, n, group.dx + offset);
    } else {
      flat_apply(group.x + offset, group.dy + offset, at, c1, c2, n, group.dx + offset);
    }
  }
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
