#include "kernels/group_norm_swish.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/stores.h"
#include "runtime/fp_environment.h"
#include "runtime/parallel.h"

#define HWY_TARGET_INCLUDE "kernels/group_norm_swish.cpp"
#include "kernels/dispatch.h"
#include "kernels/fold_rows-inl.h"
#include "kernels/pack-inl.h"
#include "kernels/split_pack-inl.h"
#include "kernels/swish-inl.h"

namespace descend::kernels {
#ifndef DESCEND_GROUP_NORM_SWISH_TYPES
#define DESCEND_GROUP_NORM_SWISH_TYPES

// Of some elements: their mean, and the sum of squared distances from it.
struct Moments {
  double mean;
  double squares;
};

// z = (x - mean) * slope + level for each channel. The mean's rounding error goes into the level: with a large offset
// it counts.
template <class W>
struct Normaliser {
  W mean;
  double rstd;
  double shift;  // the mean's error, rounded less exact, times rstd

  W slope(W gamma) const { return static_cast<W>(rstd * static_cast<double>(gamma)); }
  W level(W gamma, W beta) const {
    return static_cast<W>(static_cast<double>(beta) + shift * static_cast<double>(gamma));
  }
};

// Whether a slope, rstd * gamma, has left the range of W's normal numbers. What it is multiplied by may bring the
// result back there.
template <class W>
bool is_far(W slope, W gamma) {
  constexpr W kLeast = std::numeric_limits<W>::min(), kMost = std::numeric_limits<W>::max();
  const W size = std::abs(slope);
  return size > kMost || (size < kLeast && gamma != 0);
}

// With fewer elements a channel is too short to be worked on alone: vectors then run over channels, too.
inline constexpr int64_t kFlatForwardInner = 64;
inline bool is_flat_forward(const GroupShape& shape) { return shape.inner < kFlatForwardInner; }

// What the threads share of a group: its channels, or their blocks where they are long.
inline int64_t forward_entries(const GroupShape& shape) {
  return shape.group_channels() * (is_flat_forward(shape) ? 1 : blocks_in(shape.inner));
}

// Groups of short channels with so few elements are worked on several at a time; the moments of very small ones are
// taken in double.
inline constexpr int64_t kSmallElements = kForwardTile / 4, kVerySmallElements = 8;

// Groups of so few elements have their statistics taken several at a time, of so many elements together.
inline constexpr int64_t kFewElements = 1024, kFewTogether = 4096;

#endif
}  // namespace descend::kernels

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// ---- Moments. Each block of a group has its own mean, so that nothing cancels however far from 0 the data lies.

template <class T>
HWY_INLINE Moments moments_in_double(const T* x, int64_t n) {
  HWY_ALIGN Wide<T> lanes[kPackLanes<Wide<T>>];
  const auto add_up = [&](auto term) HWY_ATTR {
    double sum = 0;
    for (int64_t j = 0; j < n; j += kPackLanes<Wide<T>>) {
      const int64_t count = HWY_MIN(static_cast<int64_t>(kPackLanes<Wide<T>>), n - j);
      store(Full(), load_pack(Part{static_cast<size_t>(count)}, x + j), lanes);
      for (int64_t i = 0; i < count; ++i) sum += term(static_cast<double>(lanes[i]));
    }
    return sum;
  };
  const double mean = add_up([](double v) { return v; }) / static_cast<double>(n);
  return {mean, add_up([mean](double v) { return (v - mean) * (v - mean); })};
}

// Whether a sum of squares of distances from a rough mean tells the moments. It may have left the range, and of float
// lost bits at its lower end; and of what is not finite, or whose mean is not, it is not finite either.
template <class W>
HWY_INLINE bool are_moments(double squares, double tiny) {
  return squares >= (sizeof(W) == sizeof(float) ? tiny : 0) && squares <= std::numeric_limits<double>::max();
}

// The sum of a block's elements, in lanes; those that lie `ahead` of them, if any, are asked for.
template <class T>
HWY_INLINE Vector<Wide<T>> block_sum(const T* x, int64_t n, int64_t ahead = 0) {
  using W = Wide<T>;
  Pack<W> sum = zero_pack<W>();
  for_each_pack<W>(0, n, [&](auto extent, int64_t j) DESCEND_INLINED {
    if (ahead != 0) prefetch_pack<prefetch_near>(x + j, ahead);
    sum = add(sum, load_pack(extent, x + j));
  });
  return fold_to_vector<W>(sum.v);
}

// The sums of their distances from a number and of the squares of these, likewise.
template <class T>
HWY_INLINE void block_distances(const T* x, int64_t n, Wide<T> from, Vector<Wide<T>>& sum, Vector<Wide<T>>& squares) {
  using W = Wide<T>;
  const auto centre = splat(from);
  Pack<W> first = zero_pack<W>(), second = zero_pack<W>();
  for_each_pack<W>(0, n, [&](auto extent, int64_t j) DESCEND_INLINED {
    each<kPackVectors<W>>([&](size_t k) DESCEND_INLINED {
      const auto distance = inside<W>(extent, hn::Sub(load(extent, x + j, k), centre), k);
      first.v[k] = hn::Add(first.v[k], distance);
      second.v[k] = hn::MulAdd(distance, distance, second.v[k]);
    });
  });
  sum = fold_to_vector<W>(first.v);
  squares = fold_to_vector<W>(second.v);
}

// Of one block: the mean roughly, then how far from it the elements lie. The block stays in the first-level cache.
template <class T>
HWY_INLINE Moments block_moments(const T* x, int64_t n, double tiny) {
  using W = Wide<T>;
  const Tag<W> d;
  const double count = static_cast<double>(n);
  const W near = static_cast<W>(static_cast<double>(fold_vector(d, block_sum(x, n))) / count);
  Vector<W> rests, rest_squares;
  block_distances(x, n, near, rests, rest_squares);
  const double rest = static_cast<double>(fold_vector(d, rests));
  const double squares = static_cast<double>(fold_vector(d, rest_squares));
  if (!are_moments<W>(squares, tiny)) return moments_in_double(x, n);
  const double least = squares - rest * rest / count;
  return {static_cast<double>(near) + rest / count, least < 0 ? 0 : least};
}

// Of groups of one block each: the same, but what a group costs beside its elements is shared.
template <class T>
HWY_INLINE void group_moments(const T* x, int64_t groups, int64_t elements, int64_t ahead, double tiny, double* means,
                              double* squares) {
  using W = Wide<T>;
  const Tag<double> d;
  const hn::Rebind<W, Tag<double>> dw;
  const auto count = hn::Set(d, static_cast<double>(elements)), zero = hn::Zero(d);
  for_each_fold<W>(groups, [&](int64_t group, int64_t n, Vector<W>* lanes) HWY_ATTR {
    const T* const first = x + group * elements;
    HWY_ALIGN W near[kFoldRows<W>];
    HWY_ALIGN W rests[kFoldRows<W>];
    HWY_ALIGN W rest_squares[kFoldRows<W>];
    for (int64_t g = 0; g < n; ++g) lanes[g] = block_sum(first + g * elements, elements, ahead);
    fold_rows<W>(lanes, near);
    for_each_row_vector(kFoldRows<W>, [&](int64_t g) HWY_ATTR {
      hn::Store(narrow_double<W>(d, hn::Div(load_as_double(near + g), count)), dw, near + g);
    });

    Vector<W> square_lanes[kFoldRows<W>];
    each<kFoldRows<W>>([&](size_t i) DESCEND_INLINED { lanes[i] = square_lanes[i] = hn::Zero(Tag<W>()); });
    for (int64_t g = 0; g < n; ++g) block_distances(first + g * elements, elements, near[g], lanes[g], square_lanes[g]);
    fold_rows<W>(lanes, rests);
    fold_rows<W>(square_lanes, rest_squares);
    for_each_row_vector(n, [&](int64_t g) HWY_ATTR {
      const auto rest = load_as_double(rests + g), sum = load_as_double(rest_squares + g);
      const auto least = hn::Sub(sum, hn::Div(hn::Mul(rest, rest), count));
      hn::StoreU(hn::Add(load_as_double(near + g), hn::Div(rest, count)), d, means + group + g);
      hn::StoreU(hn::IfThenElse(hn::Lt(least, zero), zero, least), d, squares + group + g);
    });
    for (int64_t g = 0; g < n; ++g) {
      if (!are_moments<W>(static_cast<double>(rest_squares[g]), tiny)) {
        const Moments exact = moments_in_double(first + g * elements, elements);
        means[group + g] = exact.mean;
        squares[group + g] = exact.squares;
      }
    }
  });
}

inline double smallest_squares(double epsilon) { return epsilon > 0x1p-40 ? 0 : 0x1p-60; }

template <class T>
void group_norm_swish_moments(const T* x, int64_t elements, double epsilon, int64_t first, int64_t last,
                              Moments* blocks) {
  for (int64_t b = first; b < last; ++b) {
    const int64_t begin = b * kBlock;
    blocks[b] = block_moments(x + begin, HWY_MIN(kBlock, elements - begin), smallest_squares(epsilon));
  }
}

template <class W>
Normaliser<W> group_norm_swish_normaliser(const Moments* blocks, int64_t elements, double epsilon) {
  const int64_t count = blocks_in(elements);
  const auto size = [&](int64_t b) { return static_cast<double>(HWY_MIN(kBlock, elements - b * kBlock)); };
  double mean = blocks[0].mean, squares = blocks[0].squares;
  if (count > 1) {
    double sum = 0;
    for (int64_t b = 0; b < count; ++b) sum += blocks[b].mean * size(b);
    mean = sum / static_cast<double>(elements);
    squares = 0;
    for (int64_t b = 0; b < count; ++b) {
      const double off = blocks[b].mean - mean;
      squares += blocks[b].squares + off * off * size(b);
    }
  }
  const W rounded = static_cast<W>(mean);
  const double rstd = 1.0 / std::sqrt(squares / static_cast<double>(elements) + epsilon);
  return {rounded, rstd, (static_cast<double>(rounded) - mean) * rstd};
}

// ---- The result.

template <class W, bool kBrief, class Channel, class Group>
struct Terms {
  Channel slope, level;
  Group mean;
  Steepness<W, kBrief> steepness;
};

// A term that all elements of a channel share: beside split packs a NaN is one that bfloat16 has.
template <class T>
HWY_INLINE Wide<T> term(Wide<T> value) {
  return kSplits<T> && std::isnan(value) ? std::numeric_limits<Wide<T>>::quiet_NaN() : value;
}

// kPacks packs from element j on. kSplit: in split packs, where all elements share their terms.
template <bool kSwish, bool kStream, bool kSplit, size_t kPacks, class T, class Extent, class C>
HWY_INLINE void apply_packs(Extent extent, const T* x, const C& at, int64_t j, T* y) {
  using W = Wide<T>;
  constexpr size_t kAll = kPacks * kPackVectors<W>, kN = HWY_MIN(kAll, kAbreastVectors);
  Pack<W> result[kPacks];
  DESCEND_UNROLL
  for (size_t first = 0; first < kAll; first += kN) {
    Vector<W> z[kN];
    each<kN>([&](size_t k) DESCEND_INLINED {
      const auto element = [&]() HWY_ATTR {
        if constexpr (!kSplit) return load(extent, x + j, first + k);
        constexpr size_t kCount = kPackVectors<W>;
        const size_t pack = (first + k) / kCount;
        return load_split(part_of<W>(extent, pack), x + j + pack * kPackLanes<W>, (first + k) % kCount);
      };
      z[k] = hn::Sub(element(), at.mean.at(extent, j, first + k));
    });
    each<kN>([&](size_t k) DESCEND_INLINED {
      z[k] = hn::MulAdd(z[k], at.slope.at(extent, j, first + k), at.level.at(extent, j, first + k));
    });
    if constexpr (kSwish) {
      swish<kBriefly<T>, W, kN>(at.steepness, z,
                                [&](size_t k) HWY_ATTR { return hn::IsFinite(at.level.at(extent, j, first + k)); });
    }
    each<kN>([&](size_t k)
                 DESCEND_INLINED { result[(first + k) / kPackVectors<W>].v[(first + k) % kPackVectors<W>] = z[k]; });
  }
  each<kPacks>([&](size_t i) DESCEND_INLINED {
    T* to = y + j + i * kPackLanes<W>;
    if constexpr (kSplit) {
      store_split<kStream, kInQuarters<T>>(part_of<W>(extent, i), result[i], to);
    } else {
      store<kStream, Nan::kAny, kInQuarters<T>>(part_of<W>(extent, i), result[i], to);
    }
  });
}

template <bool kSwish, bool kStream, bool kSplit = false, class T, class C>
HWY_INLINE void apply_span(const T* x, const C& at, int64_t begin, int64_t end, int64_t ahead, T* y) {
  using W = Wide<T>;
  over_packs<W>(begin, end, [&](auto extent, auto packs, int64_t j) DESCEND_INLINED {
    constexpr size_t kPacks = decltype(packs)::value;
    DESCEND_UNROLL
    for (size_t i = 0; i < kPacks; ++i) prefetch_pack<prefetch_near>(x + j + i * kPackLanes<W>, ahead);
    apply_packs<kSwish, kStream, kSplit, kPacks>(extent, x, at, j, y);
  });
}

// n elements of a channel whose slope is far out: in double and one factor after the other.
template <class T>
HWY_NOINLINE void apply_far(const GroupNormSwish<T>& p, const T* x, const Normaliser<Wide<T>>& by, int64_t channel,
                            int64_t n, T* y) {
  using W = Wide<T>;
  const Tag<double> d;
  const auto number = [&](auto value) HWY_ATTR { return hn::Set(d, static_cast<double>(value)); };
  const auto scale = number(p.scale), mean = number(by.mean), rstd = number(by.rstd), shift = number(by.shift);
  const auto gamma = number(p.gamma[channel]), beta = number(p.beta[channel]);
  const auto are_finite = hn::And(hn::IsFinite(gamma), hn::IsFinite(beta));
  HWY_ALIGN W lanes[kPackLanes<W>];
  for_each_pack<W>(0, n, [&](auto extent, int64_t j) HWY_ATTR {
    store(Full(), load_pack(extent, x + j), lanes);
    for (size_t k = 0; k < kPackLanes<W>; k += kVectorLanes<double>) {
      const auto xhat = hn::MulAdd(hn::Sub(load_as_double(lanes + k), mean), rstd, shift);
      const auto z = hn::MulAdd(xhat, gamma, beta);
      store_rounded(d, p.activate ? careful_swish<double>(z, hn::Mul(scale, z), are_finite) : z, lanes + k);
    }
    store(extent, load_pack(Full(), lanes), y + j);
  });
}

// Blocks [first, last) of the channels of group g of sample n, all channels' blocks counted through.
template <bool kSwish, bool kStream, class T>
HWY_INLINE void channel_apply(const GroupNormSwish<T>& p, int64_t n, int64_t g, const Normaliser<Wide<T>>& by,
                              int64_t ahead, int64_t first, int64_t last) {
  using W = Wide<T>;
  const int64_t inner = p.shape.inner, blocks = blocks_in(inner);
  const Same<W> mean(term<T>(by.mean));
  const Steepness<W, kBriefly<T>> steepness(term<T>(p.scale));
  int64_t c = g * p.shape.group_channels() + first / blocks, begin = first % blocks * kBlock;
  for (int64_t entry = first; entry < last; ++entry) {
    const int64_t end = HWY_MIN(begin + kBlock, inner);
    const T* x = p.x.row(n) + c * inner;
    T* y = p.y.row(n) + c * inner;
    const W slope = by.slope(p.gamma[c]);
    if (HWY_UNLIKELY(is_far(slope, p.gamma[c]))) {
      apply_far(p, x + begin, by, c, end - begin, y + begin);
    } else {
      const Terms<W, kBriefly<T>, Same<W>, Same<W>> at{
          Same<W>(term<T>(slope)), Same<W>(term<T>(by.level(p.gamma[c], p.beta[c]))), mean, steepness};
      apply_span<kSwish, kStream, kSplits<T>>(x, at, begin, end, ahead, y);
    }
    const bool next = end == inner;
    c += next;
    begin = next ? 0 : end;
  }
}

// ---- Short channels: vectors run over them, with slope and level there once an element.

// kForwardTile numbers, and what a pack that begins among them has beyond.
template <class W>
using Numbers = W[kForwardTile + kPackLanes<W>];

// Rstd, and the mean's error times it: of all channels, or one for each.
template <class Number>
struct Statistics {
  Number rstd, shift;
};

// Statistics of neighbouring small groups.
template <class W>
struct SmallGroups {
  HWY_ALIGN Numbers<W> mean;  // rounded
  HWY_ALIGN Numbers<double> rstd;
  HWY_ALIGN Numbers<double> shift;

  HWY_INLINE Normaliser<W> normaliser(int64_t group) const { return {mean[group], rstd[group], shift[group]}; }
  HWY_INLINE void set(const Normaliser<W>& by) { mean[0] = by.mean, rstd[0] = by.rstd, shift[0] = by.shift; }

  // To the results, from group g of sample n on.
  template <class T>
  HWY_INLINE void write(const GroupNormSwish<T>& p, int64_t n, int64_t g, int64_t groups) const {
    const int64_t first = n * p.shape.groups + g;
    copy_few(mean, groups, p.mean + first);
    std::transform(rstd, rstd + groups, p.rstd + first, [](double r) { return static_cast<W>(r); });
  }
};

// Slope and level of n channels, as Normaliser has them. Whether some slope is far out.
template <class W, class Number>
HWY_INLINE bool channel_terms(const W* gamma, const W* beta, const Statistics<Number>& of, int64_t n, W* slope,
                              W* level) {
  const Tag<double> d;
  const hn::Rebind<W, Tag<double>> dw;
  constexpr size_t kCount = kPackLanes<W> / kVectorLanes<double>;
  const hn::RebindToUnsigned<decltype(dw)> du;
  const auto least = hn::BitCast(du, hn::Set(dw, std::numeric_limits<W>::min()));
  auto farthest = hn::Zero(du);  // of the sizes' bits, counted from the least: a size below it comes last
  const auto one_pack = [&](auto extent, int64_t c) HWY_ATTR {
    Vector<double> weight[kCount], bias[kCount];
    to_double<W, kPackVectors<W>>(load_pack(extent, gamma + c).v, weight);
    to_double<W, kPackVectors<W>>(load_pack(extent, beta + c).v, bias);
    each<kCount>([&](size_t k) DESCEND_INLINED {
      const int64_t at = c + static_cast<int64_t>(k * kVectorLanes<double>);
      const auto product = hn::Mul(of.rstd.at(Full(), c, k), weight[k]);
      const auto rounded = narrow_double<W>(d, product);
      hn::StoreU(rounded, dw, slope + at);
      auto distance = hn::Sub(hn::BitCast(du, hn::Abs(rounded)), least);
      if constexpr (std::is_same_v<decltype(extent), Part>) {
        distance = hn::IfThenElseZero(hn::FirstN(du, static_cast<size_t>(HWY_MAX(n - at, int64_t{0}))), distance);
      }
      farthest = hn::Max(farthest, distance);
      hn::StoreU(narrow_double<W>(d, hn::Add(bias[k], hn::Mul(of.shift.at(Full(), c, k), weight[k]))), dw, level + at);
    });
  };
  for_each_pack<W>(0, n, one_pack);
  const auto most = hn::Sub(hn::BitCast(du, hn::Set(dw, std::numeric_limits<W>::max())), least);
  if (HWY_LIKELY(hn::AllFalse(du, hn::Gt(farthest, most)))) return false;
  for (int64_t c = 0; c < n; ++c) {
    if (is_far(slope[c], gamma[c])) return true;
  }
  return false;
}

// The same once an element.
template <class T, class Number>
HWY_INLINE bool element_terms(const GroupNormSwish<T>& p, int64_t channel, int64_t channels,
                              const Statistics<Number>& of, const Repeat<Wide<T>>& for_elements, Wide<T>* slope,
                              Wide<T>* level) {
  using W = Wide<T>;
  const W *gamma = p.gamma + channel, *beta = p.beta + channel;
  if (p.shape.inner == 1) return channel_terms(gamma, beta, of, channels, slope, level);
  HWY_ALIGN Numbers<W> slopes, levels;
  const bool far = channel_terms(gamma, beta, of, channels, slopes, levels);
  for_elements(slopes, channels * p.shape.inner, slope);
  for_elements(levels, channels * p.shape.inner, level);
  return far;
}

template <class T, class C>
HWY_INLINE void flat_span(const GroupNormSwish<T>& p, const T* x, const C& at, int64_t n, T* y) {
  p.activate ? apply_span<true, false>(x, at, 0, n, kForwardTile, y)
             : apply_span<false, false>(x, at, 0, n, kForwardTile, y);
}

// Channels one by one, where the slope of some is far out. terms(j) are those of element j and what follows, by(i) the
// normaliser of channel i.
template <class T, class TermsFrom, class By>
HWY_INLINE void apply_apart(const GroupNormSwish<T>& p, const T* x, TermsFrom terms, By by, int64_t channel,
                            int64_t channels, T* y) {
  using W = Wide<T>;
  const int64_t inner = p.shape.inner;
  for (int64_t i = 0; i < channels; ++i, x += inner, y += inner) {
    const Normaliser<W> of_channel = by(i);
    const W gamma = p.gamma[channel + i];
    if (is_far(of_channel.slope(gamma), gamma)) {
      apply_far(p, x, of_channel, channel + i, inner, y);
    } else {
      flat_span(p, x, terms(i * inner), inner, y);
    }
  }
}

// Channels [first, last) of the group.
template <class T>
HWY_INLINE void flat_apply(const GroupNormSwish<T>& p, int64_t n, int64_t g, const Normaliser<Wide<T>>& by,
                           const Repeat<Wide<T>>& for_elements, int64_t first, int64_t last) {
  using W = Wide<T>;
  HWY_ALIGN Numbers<W> slope, level;
  const Statistics<Same<double>> of{Same<double>(by.rstd), Same<double>(by.shift)};
  const int64_t inner = p.shape.inner, tile = kForwardTile / inner, end = g * p.shape.group_channels() + last;
  for (int64_t c = g * p.shape.group_channels() + first; c < end; c += tile) {
    const int64_t channels = HWY_MIN(tile, end - c);
    const bool far = element_terms(p, c, channels, of, for_elements, slope, level);
    const auto terms = [&](int64_t j) HWY_ATTR {
      return Terms<W, kBriefly<T>, Each<W>, Same<W>>{Each<W>(slope + j), Each<W>(level + j), Same<W>(by.mean),
                                                     Steepness<W, kBriefly<T>>(p.scale)};
    };
    const T* x = p.x.row(n) + c * inner;
    T* y = p.y.row(n) + c * inner;
    if (HWY_UNLIKELY(far)) {
      apply_apart(p, x, terms, [&](int64_t) { return by; }, c, channels, y);
    } else {
      flat_span(p, x, terms(0), channels * inner, y);
    }
  }
}

// flush_streams() must follow.
template <class T>
HWY_INLINE void long_apply(const GroupNormSwish<T>& p, int64_t n, int64_t g, const Normaliser<Wide<T>>& by,
                           int64_t ahead, int64_t first, int64_t last, bool stream) {
  if (kHasVectors && stream) {
    p.activate ? channel_apply<true, kHasVectors>(p, n, g, by, ahead, first, last)
               : channel_apply<false, kHasVectors>(p, n, g, by, ahead, first, last);
  } else {
    p.activate ? channel_apply<true, false>(p, n, g, by, ahead, first, last)
               : channel_apply<false, false>(p, n, g, by, ahead, first, last);
  }
}

template <class T>
void group_norm_swish_apply(const GroupNormSwish<T>& p, int64_t n, int64_t g, const Normaliser<Wide<T>>& by,
                            int64_t first, int64_t last, bool stream) {
  if (is_flat_forward(p.shape)) return flat_apply(p, n, g, by, Repeat<Wide<T>>(p.shape.inner), first, last);
  long_apply(p, n, g, by, 0, first, last, stream);
  if (stream) flush_streams();
}

// Moments of very small groups, in double, one element of a group after the other; a lane has a group.
template <class T>
HWY_INLINE void small_moments(const T* x, int64_t groups, int64_t elements, double* means, double* squares) {
  using W = Wide<T>;
  const Tag<double> d;
  const hn::Rebind<W, Tag<double>> dw;
  const hn::RebindToSigned<decltype(dw)> di;
  using I = hn::TFromD<decltype(di)>;
  HWY_ALIGN Numbers<W> values;
  widen_packs(x, groups * elements, values);
  Vector<double> element[kVerySmallElements];
  const auto count = hn::Set(d, static_cast<double>(elements));
  const auto each_group = hn::Mul(hn::Iota(di, 0), hn::Set(di, static_cast<I>(elements)));
  for (int64_t g = 0; g < groups; g += kVectorLanes<double>) {
    // Lanes without a group have the last one's.
    const auto begins = hn::Min(each_group, hn::Set(di, static_cast<I>((groups - 1 - g) * elements)));
    const W* from = values + g * elements;
    auto sum = hn::Zero(d), rest = sum;
    for (int64_t i = 0; i < elements; ++i) {
      element[i] = widen_to_double(d, hn::GatherIndex(dw, from + i, begins));
      sum = hn::Add(sum, element[i]);
    }
    const auto mean = hn::Div(sum, count);
    for (int64_t i = 0; i < elements; ++i) {
      const auto distance = hn::Sub(element[i], mean);
      rest = hn::Add(rest, hn::Mul(distance, distance));
    }
    hn::Store(mean, d, means + g);
    hn::Store(rest, d, squares + g);
  }
}

// Of groups of one element, which is the mean; nothing is beside it, where it is a number.
template <class T>
HWY_INLINE void single_statistics(const T* x, int64_t groups, double epsilon, SmallGroups<Wide<T>>& of) {
  using W = Wide<T>;
  const Tag<double> d;
  for_each_pack<W>(0, groups, [&](auto extent, int64_t g) HWY_ATTR {
    store(Full(), add(zero_pack<W>(), load_pack(extent, x + g)), of.mean + g);  // of -0 the mean is 0
  });
  const auto rstd = hn::Set(d, 1.0 / std::sqrt(epsilon));
  for_each_row_vector(groups, [&](int64_t g) HWY_ATTR {
    const auto mean = load_as_double(of.mean + g), nothing = hn::Sub(mean, mean);
    hn::Store(hn::Add(rstd, nothing), d, of.rstd + g);
    hn::Store(hn::Mul(rstd, nothing), d, of.shift + g);
  });
}

template <class T>
HWY_INLINE void small_statistics(const T* x, int64_t groups, int64_t elements, int64_t ahead, double epsilon,
                                 SmallGroups<Wide<T>>& of) {
  if (elements == 1) return single_statistics(x, groups, epsilon, of);
  const Tag<double> d;
  double *const means = of.shift, *const squares = of.rstd;  // which take their places, vector by vector
  if (elements <= kVerySmallElements) {
    small_moments(x, groups, elements, means, squares);
  } else {
    group_moments(x, groups, elements, ahead, smallest_squares(epsilon), means, squares);
  }
  const auto count = hn::Set(d, static_cast<double>(elements)), one = hn::Set(d, 1.0);
  for_each_row_vector(groups, [&](int64_t g) HWY_ATTR {
    const auto variance = hn::Div(hn::Load(d, squares + g), count), mean = hn::Load(d, means + g);
    const auto rstd = hn::Div(one, hn::Sqrt(hn::Add(variance, hn::Set(d, epsilon))));
    const auto rounded = store_rounded(d, mean, of.mean + g);
    hn::Store(rstd, d, of.rstd + g);
    hn::Store(hn::Mul(hn::Sub(rounded, mean), rstd), d, of.shift + g);
  });
}

template <class W>
struct SmallRepeats {
  explicit HWY_INLINE SmallRepeats(const GroupShape& shape)
      : for_channels(shape.group_channels()), for_group_elements(shape.group_elements()), for_elements(shape.inner) {}
  Repeat<double> for_channels;
  Repeat<W> for_group_elements, for_elements;
};

// Groups [first, last) of a sample where groups are small: as many at a time as fit a tile.
template <class T>
HWY_INLINE void small_groups(const GroupNormSwish<T>& p, const SmallRepeats<Wide<T>>& repeat, int64_t n, int64_t first,
                             int64_t last) {
  using W = Wide<T>;
  HWY_ALIGN Numbers<W> slope, level, mean;
  HWY_ALIGN Numbers<double> rstd, shift;
  SmallGroups<W> of;
  const int64_t elements = p.shape.group_elements(), channels = p.shape.group_channels();
  const int64_t tile = kForwardTile / elements;
  for (int64_t g = first; g < last; g += tile) {
    const int64_t groups = HWY_MIN(tile, last - g), all = groups * elements;
    const T* x = p.x.row(n) + g * elements;
    small_statistics(x, groups, elements, kForwardTile, p.epsilon, of);
    of.write(p, n, g, groups);
    repeat.for_group_elements(of.mean, all, mean);
    repeat.for_channels(of.rstd, groups * channels, rstd);
    repeat.for_channels(of.shift, groups * channels, shift);
    const Statistics<Each<double>> each_channel{Each<double>(rstd), Each<double>(shift)};
    const bool far = element_terms(p, g * channels, groups * channels, each_channel, repeat.for_elements, slope, level);
    const auto terms = [&](int64_t j) HWY_ATTR {
      return Terms<W, kBriefly<T>, Each<W>, Each<W>>{Each<W>(slope + j), Each<W>(level + j), Each<W>(mean + j),
                                                     Steepness<W, kBriefly<T>>(p.scale)};
    };
    T* y = p.y.row(n) + g * elements;
    if (HWY_UNLIKELY(far)) {
      const auto by = [&](int64_t i) HWY_ATTR { return of.normaliser(i / channels); };
      apply_apart(p, x, terms, by, g * channels, groups * channels, y);
    } else {
      flat_span(p, x, terms(0), all, y);
    }
  }
}

// One chunk of groups, each by this thread alone.
template <class T>
void group_norm_swish_chunk(const GroupNormSwish<T>& p, const GroupCut& cut, int64_t i, bool stream) {
  const GroupShape& shape = p.shape;
  const GroupChunk chunk = cut.chunk(shape, i);
  const int64_t first = chunk.first_group, last = chunk.last_group;
  const int64_t elements = shape.group_elements();
  const bool flat = is_flat_forward(shape);
  if (flat && elements <= kSmallElements) {
    const SmallRepeats<Wide<T>> repeat(shape);
    for (int64_t n = chunk.first_sample; n < chunk.last_sample; ++n) small_groups(p, repeat, n, first, last);
    return;
  }
  const int64_t entries = forward_entries(shape);
  const Repeat<Wide<T>> for_elements(flat ? shape.inner : 1);
  const bool few = elements <= kFewElements;
  const int64_t most = few ? HWY_MIN(kFewTogether / elements, kFoldRows<Wide<T>>) : 1;  // groups together
  SmallGroups<Wide<T>> of;
  Moments blocks[kWholeElements / kBlock];
  for (int64_t n = chunk.first_sample; n < chunk.last_sample; ++n) {
    for (int64_t g = first, groups; g < last; g += groups) {
      groups = HWY_MIN(most, last - g);
      const bool same_sample = g + groups < last, same_chunk = same_sample || n + 1 < chunk.last_sample;
      const int64_t ahead = same_sample ? groups * elements : same_chunk ? p.x.stride - (g - first) * elements : 0;
      const T* x = p.x.row(n) + g * elements;
      if (few) {
        small_statistics(x, groups, elements, 0, p.epsilon, of);
      } else {
        group_norm_swish_moments(x, elements, p.epsilon, 0, blocks_in(elements), blocks);
        of.set(group_norm_swish_normaliser<Wide<T>>(blocks, elements, p.epsilon));
      }
      of.write(p, n, g, groups);
      for (int64_t k = 0; k < groups; ++k) {
        const Normaliser<Wide<T>> by = of.normaliser(k);
        flat ? flat_apply(p, n, g + k, by, for_elements, 0, entries)
             : long_apply(p, n, g + k, by, ahead, 0, entries, stream);
      }
    }
  }
  if (stream) flush_streams();
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace descend::kernels {
namespace {

template <class T>
int64_t bytes_moved(const GroupShape& shape) {
  return 2 * shape.elements() * static_cast<int64_t>(sizeof(T));
}

template <class T>
void by_groups(const GroupNormSwish<T>& p, bool stream) {
  static const auto run = DESCEND_CHOOSE(group_norm_swish_chunk<T>);
  const GroupCut cut = cut_groups(p.shape, false);
  parallel_for(cut.chunks(), group_work(p.shape, p.shape.elements()),
               [&](int64_t chunk) { run(p, cut, chunk, stream); });
}

// The threads share one group after the other.
template <class T>
void by_pieces(const GroupNormSwish<T>& p, Moments* blocks, bool stream) {
  static const auto moments = DESCEND_CHOOSE(group_norm_swish_moments<T>);
  static const auto normaliser = DESCEND_CHOOSE(group_norm_swish_normaliser<Wide<T>>);
  static const auto apply = DESCEND_CHOOSE(group_norm_swish_apply<T>);
  const GroupShape& shape = p.shape;
  const int64_t elements = shape.group_elements(), count = blocks_in(elements);
  const int64_t entries = forward_entries(shape);
  const int64_t entry_elements = is_flat_forward(shape) ? shape.inner : std::min(shape.inner, kBlock);
  const int64_t piece = std::max<int64_t>(kPieceElements / entry_elements, 1), block_piece = kPieceElements / kBlock;
  const int64_t bytes = elements * static_cast<int64_t>(sizeof(T));
  for (int64_t n = 0; n < shape.samples; ++n) {
    for (int64_t g = 0; g < shape.groups; ++g) {
      const T* x = p.x.row(n) + g * elements;
      parallel_for(ceil_div(count, block_piece), bytes, [&](int64_t i) {
        moments(x, elements, p.epsilon, i * block_piece, std::min((i + 1) * block_piece, count), blocks);
      });
      Normaliser<Wide<T>> by;
      {
        const FixedFpEnvironment environment;
        by = normaliser(blocks, elements, p.epsilon);
        p.mean[n * shape.groups + g] = by.mean;
        p.rstd[n * shape.groups + g] = static_cast<Wide<T>>(by.rstd);
      }
      parallel_for(ceil_div(entries, piece), group_work(shape, elements),
                   [&](int64_t i) { apply(p, n, g, by, i * piece, std::min((i + 1) * piece, entries), stream); });
    }
  }
}

}  // namespace

template <class T>
size_t group_norm_swish_scratch(const GroupShape& shape) {
  if (shape.elements() == 0 || !split_groups(shape)) return 0;
  return static_cast<size_t>(blocks_in(shape.group_elements())) * sizeof(Moments);
}

template <class T>
void group_norm_swish(const GroupNormSwish<T>& p, void* scratch) {
  const GroupShape& shape = p.shape;
  if (shape.elements() == 0) {
    std::fill_n(p.mean, shape.samples * shape.groups, Wide<T>{0});
    std::fill_n(p.rstd, shape.samples * shape.groups, std::numeric_limits<Wide<T>>::quiet_NaN());
    return;
  }
  const int64_t size = static_cast<int64_t>(sizeof(T));
  const bool stream = !is_flat_forward(shape) && shape.inner * size % kStreamUnit<T> == 0 &&
                      stream_output(p.y, even_traffic(bytes_moved<T>(shape)), kStreamUnit<T>);
  split_groups(shape) ? by_pieces(p, static_cast<Moments*>(scratch), stream) : by_groups(p, stream);
}

#define DESCEND_INSTANTIATE(T)                                          \
  template size_t group_norm_swish_scratch<T>(const GroupShape& shape); \
  template void group_norm_swish<T>(const GroupNormSwish<T>& problem, void* scratch);
DESCEND_INSTANTIATE(float16)
DESCEND_INSTANTIATE(bfloat16)
DESCEND_INSTANTIATE(float)
DESCEND_INSTANTIATE(double)

}  // namespace descend::kernels
#endif  // HWY_ONCE
