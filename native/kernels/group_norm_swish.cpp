#include "kernels/group_norm_swish.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/fp_environment.h"
#include "runtime/parallel.h"

#define HWY_TARGET_INCLUDE "kernels/group_norm_swish.cpp"
#include "kernels/dispatch.h"
#include "kernels/pack-inl.h"
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
  double error;  // of the mean, rounded less exact
  double rstd;

  W slope(W gamma) const {
    constexpr double kLargest = std::numeric_limits<W>::max();
    const double product = rstd * static_cast<double>(gamma);
    if (!(product > kLargest || product < -kLargest)) return static_cast<W>(product);
    return static_cast<W>(product > 0 ? kLargest : -kLargest);  // not infinity, which times 0 is NaN
  }
  W level(W gamma, W beta) const {
    return static_cast<W>(static_cast<double>(beta) + error * rstd * static_cast<double>(gamma));
  }
};

// Elements that the path for short channels works on at a time: whole channels, or whole groups where they are small.
inline constexpr int64_t kForwardTile = 1024;

// Whether swish is computed the brief way.
template <class T>
inline constexpr bool kBrief = sizeof(T) == 2;

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

// Of a small group: in double, one element after the other.
template <class T>
HWY_INLINE Moments small_moments(const T* x, int64_t n) {
  HWY_ALIGN Wide<T> values[HWY_MAX(kSmallElements, 2 * kPackLanes<Wide<T>>)];
  constexpr int64_t kStep = kPackLanes<Wide<T>>;
  int64_t j = 0;
  for (; j + kStep <= n; j += kStep) store(Full(), load_pack(Full(), x + j), values + j);
  if (j < n) store(Full(), load_pack(Part{static_cast<size_t>(n - j)}, x + j), values + j);
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(values[i]);
  const double mean = sum / static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i)
    squares += (static_cast<double>(values[i]) - mean) * (static_cast<double>(values[i]) - mean);
  return {mean, squares};
}

// Of one block: the mean roughly, then how far from it the elements lie. The block stays in the first-level cache.
template <class T>
HWY_INLINE Moments block_moments(const T* x, int64_t n, int64_t ahead, double tiny) {
  using W = Wide<T>;
  constexpr int64_t kStep = kPackLanes<W>;
  const double count = static_cast<double>(n);
  Pack<W> sum = zero_pack<W>();
  int64_t j = 0;
  for (; j + kStep <= n; j += kStep) {
    prefetch_pack(x + j, ahead);
    sum = add(sum, load_pack(Full(), x + j));
  }
  if (j < n) sum = add(sum, load_pack(Part{static_cast<size_t>(n - j)}, x + j));
  const W near = static_cast<W>(static_cast<double>(fold(sum)) / count);

  const auto centre = splat(near);
  Pack<W> first = zero_pack<W>(), second = zero_pack<W>();
  const auto one_pack = [&](auto extent, int64_t at) HWY_ATTR {
    DESCEND_UNROLL
    for (size_t k = 0; k < kPackVectors<W>; ++k) {
      const auto distance = inside<W>(extent, hn::Sub(load(extent, x + at, k), centre), k);
      first.v[k] = hn::Add(first.v[k], distance);
      second.v[k] = hn::MulAdd(distance, distance, second.v[k]);
    }
  };
  for (j = 0; j + kStep <= n; j += kStep) one_pack(Full(), j);
  if (j < n) one_pack(Part{static_cast<size_t>(n - j)}, j);
  const double rest = static_cast<double>(fold(first)), squares = static_cast<double>(fold(second));
  if constexpr (sizeof(W) == sizeof(float)) {
    // Squares may have left the range of float, or lost bits at its lower end.
    if (!(squares >= tiny && squares <= std::numeric_limits<double>::max())) return moments_in_double(x, n);
  }
  const double least = squares - rest * rest / count;
  return {static_cast<double>(near) + rest / count, least < 0 ? 0 : least};
}

inline double smallest_squares(double epsilon) { return epsilon > 0x1p-40 ? 0 : 0x1p-60; }

template <class T>
void group_norm_swish_moments(const T* x, int64_t elements, int64_t ahead, double epsilon, int64_t first, int64_t last,
                              Moments* blocks) {
  for (int64_t b = first; b < last; ++b) {
    const int64_t begin = b * kBlock;
    blocks[b] = block_moments(x + begin, HWY_MIN(kBlock, elements - begin), ahead, smallest_squares(epsilon));
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
  return {rounded, static_cast<double>(rounded) - mean,
          1.0 / std::sqrt(squares / static_cast<double>(elements) + epsilon)};
}

// ---- The result.

template <class W, bool kBrief, class Channel, class Group>
struct Terms {
  Channel slope, level;
  Group mean;
  Steepness<W, kBrief> steepness;
};

// kPacks packs from element j on.
template <bool kSwish, bool kStream, size_t kPacks, class T, class Extent, class C>
HWY_INLINE void apply_packs(Extent extent, const T* x, const C& at, int64_t j, T* y) {
  using W = Wide<T>;
  constexpr size_t kAll = kPacks * kPackVectors<W>, kN = HWY_MIN(kAll, kAbreastVectors);
  Pack<W> result[kPacks];
  DESCEND_UNROLL
  for (size_t first = 0; first < kAll; first += kN) {
    Vector<W> z[kN];
    each<kN>([&](size_t k)
                 HWY_ATTR { z[k] = hn::Sub(load(extent, x + j, first + k), at.mean.at(extent, j, first + k)); });
    each<kN>([&](size_t k) HWY_ATTR {
      z[k] = hn::MulAdd(z[k], at.slope.at(extent, j, first + k), at.level.at(extent, j, first + k));
    });
    if constexpr (kSwish) swish<kBrief<T>, W, kN>(at.steepness, z);
    each<kN>([&](size_t k) HWY_ATTR { result[(first + k) / kPackVectors<W>].v[(first + k) % kPackVectors<W>] = z[k]; });
  }
  each<kPacks>([&](size_t i) HWY_ATTR { store<kStream>(part_of<W>(extent, i), result[i], y + j + i * kPackLanes<W>); });
}

template <bool kSwish, bool kStream, class T, class C>
HWY_INLINE void apply_span(const T* x, const C& at, int64_t begin, int64_t end, int64_t ahead, T* y) {
  using W = Wide<T>;
  over_packs<W>(begin, end, [&](auto extent, auto packs, int64_t j) HWY_ATTR DESCEND_ALWAYS_INLINE {
    constexpr size_t kPacks = decltype(packs)::value;
    DESCEND_UNROLL
    for (size_t i = 0; i < kPacks; ++i) prefetch_pack(x + j + i * kPackLanes<W>, ahead);
    apply_packs<kSwish, kStream, kPacks>(extent, x, at, j, y);
  });
}

// Blocks [first, last) of the channels of group g of sample n, all channels' blocks counted through.
template <bool kSwish, bool kStream, class T>
HWY_INLINE void channel_apply(const GroupNormSwish<T>& p, int64_t n, int64_t g, const Normaliser<Wide<T>>& by,
                              int64_t ahead, int64_t first, int64_t last) {
  using W = Wide<T>;
  const int64_t inner = p.shape.inner, blocks = blocks_in(inner), channel = g * p.shape.group_channels();
  for (int64_t entry = first; entry < last; ++entry) {
    const int64_t c = channel + entry / blocks, begin = entry % blocks * kBlock;
    const Terms<W, kBrief<T>, Same<W>, Same<W>> at{Same<W>(by.slope(p.gamma[c])),
                                                   Same<W>(by.level(p.gamma[c], p.beta[c])), Same<W>(by.mean),
                                                   Steepness<W, kBrief<T>>(p.scale)};
    apply_span<kSwish, kStream>(p.x.row(n) + c * inner, at, begin, HWY_MIN(begin + kBlock, inner), ahead,
                                p.y.row(n) + c * inner);
  }
}

template <class W>
HWY_INLINE void spread(W value, int64_t n, W* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = value;
}

// Slope and level of channels [first, last) of a sample, once an element.
template <class T>
HWY_INLINE void spread_channels(const GroupNormSwish<T>& p, const Normaliser<Wide<T>>& by, int64_t first, int64_t last,
                                Wide<T>* slope, Wide<T>* level) {
  const int64_t inner = p.shape.inner;
  for (int64_t c = first; c < last; ++c, slope += inner, level += inner) {
    spread(by.slope(p.gamma[c]), inner, slope);
    spread(by.level(p.gamma[c], p.beta[c]), inner, level);
  }
}

template <class T, class C>
HWY_INLINE void flat_span(const GroupNormSwish<T>& p, const T* x, const C& at, int64_t n, T* y) {
  p.activate ? apply_span<true, false>(x, at, 0, n, 0, y) : apply_span<false, false>(x, at, 0, n, 0, y);
}

// The same for channels [first, last) of the group where they are short: vectors run over them.
template <class T>
HWY_INLINE void flat_apply(const GroupNormSwish<T>& p, int64_t n, int64_t g, const Normaliser<Wide<T>>& by,
                           int64_t first, int64_t last) {
  using W = Wide<T>;
  HWY_ALIGN W slope[kForwardTile], level[kForwardTile];
  const int64_t inner = p.shape.inner, tile = kForwardTile / inner, end = g * p.shape.group_channels() + last;
  for (int64_t c = g * p.shape.group_channels() + first; c < end; c += tile) {
    const int64_t channels = HWY_MIN(tile, end - c);
    spread_channels(p, by, c, c + channels, slope, level);
    const Terms<W, kBrief<T>, Each<W>, Same<W>> at{Each<W>(slope), Each<W>(level), Same<W>(by.mean),
                                                   Steepness<W, kBrief<T>>(p.scale)};
    flat_span(p, p.x.row(n) + c * inner, at, channels * inner, p.y.row(n) + c * inner);
  }
}

template <class T>
void group_norm_swish_apply(const GroupNormSwish<T>& p, int64_t n, int64_t g, const Normaliser<Wide<T>>& by,
                            int64_t ahead, int64_t first, int64_t last, bool stream) {
  if (p.shape.inner < kFlatInner) return flat_apply(p, n, g, by, first, last);
  if (stream) {
    p.activate ? channel_apply<true, true>(p, n, g, by, ahead, first, last)
               : channel_apply<false, true>(p, n, g, by, ahead, first, last);
    flush_streams();
  } else {
    p.activate ? channel_apply<true, false>(p, n, g, by, ahead, first, last)
               : channel_apply<false, false>(p, n, g, by, ahead, first, last);
  }
}

// Groups [first, last) of a sample where groups are small: as many at a time as fit a tile.
template <class T>
HWY_INLINE void small_groups(const GroupNormSwish<T>& p, int64_t n, int64_t first, int64_t last) {
  using W = Wide<T>;
  HWY_ALIGN W slope[kForwardTile], level[kForwardTile], mean[kForwardTile];
  const int64_t elements = p.shape.group_elements(), channels = p.shape.group_channels();
  const int64_t tile = kForwardTile / elements;
  for (int64_t g = first; g < last; g += tile) {
    const int64_t groups = HWY_MIN(tile, last - g);
    const T* x = p.x.row(n) + g * elements;
    for (int64_t i = 0; i < groups; ++i) {
      const Moments moments = small_moments(x + i * elements, elements);
      const auto by = group_norm_swish_normaliser<W>(&moments, elements, p.epsilon);
      spread(by.mean, elements, mean + i * elements);
      spread_channels(p, by, (g + i) * channels, (g + i + 1) * channels, slope + i * elements, level + i * elements);
      p.mean[n * p.shape.groups + g + i] = by.mean;
      p.rstd[n * p.shape.groups + g + i] = static_cast<W>(by.rstd);
    }
    const Terms<W, kBrief<T>, Each<W>, Each<W>> at{Each<W>(slope), Each<W>(level), Each<W>(mean),
                                                   Steepness<W, kBrief<T>>(p.scale)};
    flat_span(p, x, at, groups * elements, p.y.row(n) + g * elements);
  }
}

// One chunk of groups, each by this thread alone.
template <class T>
void group_norm_swish_chunk(const GroupNormSwish<T>& p, const GroupCut& cut, int64_t chunk, bool stream) {
  const GroupShape& shape = p.shape;
  const int64_t first_sample = chunk / cut.group_chunks * cut.chunk_samples;
  const int64_t last_sample = HWY_MIN(first_sample + cut.chunk_samples, shape.samples);
  const int64_t first = chunk % cut.group_chunks * cut.chunk_groups,
                last = HWY_MIN(first + cut.chunk_groups, shape.groups);
  const int64_t elements = shape.group_elements();
  const int64_t entries = shape.group_channels() * (shape.inner < kFlatInner ? 1 : blocks_in(shape.inner));
  Moments blocks[kWholeElements / kBlock];
  for (int64_t n = first_sample; n < last_sample; ++n) {
    if (shape.inner < kFlatInner && elements <= kSmallElements / 2) {
      small_groups(p, n, first, last);
      continue;
    }
    for (int64_t g = first; g < last; ++g) {
      const bool same_sample = g + 1 < last, same_chunk = same_sample || n + 1 < last_sample;
      const int64_t ahead = same_sample ? elements : same_chunk ? p.x.stride - (g - first) * elements : 0;
      group_norm_swish_moments(p.x.row(n) + g * elements, elements, 0, p.epsilon, 0, blocks_in(elements), blocks);
      const Normaliser<Wide<T>> by = group_norm_swish_normaliser<Wide<T>>(blocks, elements, p.epsilon);
      group_norm_swish_apply(p, n, g, by, ahead, 0, entries, stream);
      p.mean[n * shape.groups + g] = by.mean;
      p.rstd[n * shape.groups + g] = static_cast<Wide<T>>(by.rstd);
    }
  }
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
  const int64_t bytes = bytes_moved<T>(p.shape);
  const GroupCut cut = cut_groups(p.shape, bytes);
  parallel_for(cut.chunks(), bytes, [&](int64_t chunk) { run(p, cut, chunk, stream); });
}

// The threads share one group after the other.
template <class T>
void by_pieces(const GroupNormSwish<T>& p, Moments* blocks, bool stream) {
  static const auto moments = DESCEND_CHOOSE(group_norm_swish_moments<T>);
  static const auto normaliser = DESCEND_CHOOSE(group_norm_swish_normaliser<Wide<T>>);
  static const auto apply = DESCEND_CHOOSE(group_norm_swish_apply<T>);
  const GroupShape& shape = p.shape;
  const int64_t elements = shape.group_elements(), count = blocks_in(elements);
  const bool flat = shape.inner < kFlatInner;
  const int64_t entries = shape.group_channels() * (flat ? 1 : blocks_in(shape.inner));
  const int64_t entry_elements = flat ? shape.inner : std::min(shape.inner, kBlock);
  const int64_t piece = std::max<int64_t>(kPieceElements / entry_elements, 1), block_piece = kPieceElements / kBlock;
  const int64_t bytes = elements * static_cast<int64_t>(sizeof(T));
  for (int64_t n = 0; n < shape.samples; ++n) {
    for (int64_t g = 0; g < shape.groups; ++g) {
      const T* x = p.x.row(n) + g * elements;
      parallel_for(ceil_div(count, block_piece), bytes, [&](int64_t i) {
        moments(x, elements, 0, p.epsilon, i * block_piece, std::min((i + 1) * block_piece, count), blocks);
      });
      Normaliser<Wide<T>> by;
      {
        const FixedFpEnvironment environment;
        by = normaliser(blocks, elements, p.epsilon);
        p.mean[n * shape.groups + g] = by.mean;
        p.rstd[n * shape.groups + g] = static_cast<Wide<T>>(by.rstd);
      }
      parallel_for(ceil_div(entries, piece), 2 * bytes,
                   [&](int64_t i) { apply(p, n, g, by, 0, i * piece, std::min((i + 1) * piece, entries), stream); });
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
  const bool stream = shape.inner >= kFlatInner && shape.inner * size % 64 == 0 &&
                      stream_output(p.y.data, p.y.stride * size, bytes_moved<T>(shape));
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
