#include "kernels/group_norm_swish_grad.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <type_traits>

#include "kernels/stores.h"
#include "runtime/fp_environment.h"
#include "runtime/parallel.h"

#define HWY_TARGET_INCLUDE "kernels/group_norm_swish_grad.cpp"
#include "kernels/dispatch.h"
#include "kernels/fold_rows-inl.h"
#include "kernels/pack-inl.h"
#include "kernels/split_pack-inl.h"
#include "kernels/spread-inl.h"
#include "kernels/swish-inl.h"

namespace descend::kernels {
#ifndef DESCEND_GROUP_NORM_SWISH_GRAD_TYPES
#define DESCEND_GROUP_NORM_SWISH_GRAD_TYPES

// Elements that are worked on at a time of short channels, in a first-level cache: vectors then run over channels, too.
inline constexpr int64_t kFlatTile = 2048;

// Groups of short channels with fewer elements are small: several are worked on at a time.
inline constexpr int64_t kSmallGradElements = 64;

// One group, and where its sums go. An entry is a channel, or a block of one where channels are long.
template <class T>
struct GradGroup {
  const T* dy;
  const T* x;
  T* dx;
  Wide<T> mean, rstd;
  int64_t channel;            // the group's first
  const Wide<T>* gamma_each;  // one number an element of the sample, for the flat path
  const Wide<T>* beta_each;
  double* dz_sums;            // [entries]
  double* dzx_sums;           // [entries]: of dz * xhat
  Wide<T>* dz;                // [elements], or null where it is computed again rather than kept; see dz_pitch()
  Wide<T> mean_dz, mean_dzx;  // of gamma * dz, and of that times xhat; set once the sums are there
  bool stream;                // whether dx is stored past the caches
  bool in_step;               // whether dx is made in step with the next group's sums

  void place(const GroupNormSwishGrad<T>& p, int64_t sample, int64_t index) {
    const int64_t offset = index * p.shape.group_elements();
    dy = p.dy.row(sample) + offset;
    x = p.x.row(sample) + offset;
    dx = p.dx.row(sample) + offset;
    mean = p.mean[sample * p.shape.groups + index];
    rstd = p.rstd[sample * p.shape.groups + index];
    channel = index * p.shape.group_channels();
  }
};

// How long channels are read: normalised; but elements of 16 bits are taken as they are, since the digits that they
// lack are more than what rounding loses where the mean is large. The coefficients then make up for it.
template <class T>
struct Frame {
  static constexpr bool kNormalised = sizeof(T) != 2;
  double origin, unit;  // xhat = (element - origin) * unit

  Frame(Wide<T> mean, Wide<T> rstd)
      : origin(kNormalised ? 0.0 : static_cast<double>(mean)), unit(kNormalised ? 1.0 : static_cast<double>(rstd)) {}
};

// A NaN is the one that store_split() takes.
template <class W>
HWY_INLINE W rounded(double value) {
  return std::isnan(value) ? std::numeric_limits<W>::quiet_NaN() : static_cast<W>(value);
}

// Not infinity, which times 0 is NaN.
template <class W>
HWY_INLINE W finite(double value) {
  constexpr double kLargest = static_cast<double>(std::numeric_limits<W>::max());
  return rounded<W>(std::clamp(value, -kLargest, kLargest));
}

// Where the slope of swish is computed the brief way, in units of -ln 2.
template <class T>
HWY_INLINE double scale_of(const GroupNormSwishGrad<T>& p) {
  return static_cast<double>(p.scale) * (kBriefly<T> ? -std::numbers::log2e : 1.0);
}

// Where channels are long, the dz of each starts at a multiple of so many elements: it is kept in whole packs.
template <class W>
HWY_INLINE int64_t dz_pitch(int64_t inner) {
  constexpr int64_t kLanes = 128 / sizeof(W);
  return ceil_div(inner, kLanes) * kLanes;
}

inline int64_t grad_entries(const GroupShape& shape) {
  return shape.group_channels() * (has_short_channels(shape) ? 1 : blocks_in(shape.inner));
}

#endif
}  // namespace descend::kernels

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// ---- Channels that are long enough to be worked on one by one.

// Of a channel: an element times the steepness and plus the level is u = s * z.
template <class W>
struct Line {
  Vector<W> steepness, level;

  HWY_INLINE Line() {}  // as Pack's
  HWY_INLINE Line(Vector<W> line_steepness, Vector<W> line_level) : steepness(line_steepness), level(line_level) {}
};

// Those of some channels, and the weight that each gives its dz.
template <class T>
struct Lines {
  using W = Wide<T>;
  static constexpr int64_t kMost = kFoldRows<W>;
  static constexpr int64_t kFew = 6;  // that are computed sooner one by one

  HWY_ALIGN W steepness[kMost];
  HWY_ALIGN W level[kMost];
  HWY_ALIGN W weight[kMost];

  HWY_INLINE Lines() {}  // as Pack's

  HWY_INLINE void set_lines(const GroupNormSwishGrad<T>& p, const Frame<T>& frame, int64_t channel, int64_t n) {
    const double scale = scale_of(p);
    if (n < kFew) {
      for (int64_t i = 0; i < n; ++i) {
        const double gamma = static_cast<double>(p.gamma[channel + i]), beta = static_cast<double>(p.beta[channel + i]);
        steepness[i] = finite<W>(gamma * frame.unit * scale);
        level[i] = finite<W>(beta * scale - frame.origin * static_cast<double>(steepness[i]));
      }
      return;
    }
    const Tag<double> d;
    HWY_ALIGN W gammas[kMost] = {}, betas[kMost] = {};
    std::copy_n(p.gamma + channel, n, gammas);
    std::copy_n(p.beta + channel, n, betas);
    for_each_row_vector(n, [&](int64_t i) HWY_ATTR {
      const auto gamma = load_as_double(gammas + i), beta = load_as_double(betas + i);
      const auto slope =
          store_rounded(d, finite_lanes(hn::Mul(hn::Mul(gamma, splat(frame.unit)), splat(scale))), steepness + i);
      store_rounded(d, finite_lanes(hn::Sub(hn::Mul(beta, splat(scale)), hn::Mul(splat(frame.origin), slope))),
                    level + i);
    });
  }

  HWY_INLINE void set_weights(const GroupNormSwishGrad<T>& p, const Frame<T>& frame, int64_t channel, int64_t n) {
    if (n < kFew) {
      for (int64_t i = 0; i < n; ++i) {
        weight[i] = rounded<W>(frame.unit * static_cast<double>(p.gamma[channel + i]));
      }
      return;
    }
    HWY_ALIGN W gammas[kMost] = {};
    std::copy_n(p.gamma + channel, n, gammas);
    for_each_row_vector(n, [&](int64_t i) HWY_ATTR {
      const auto product = hn::Mul(splat(frame.unit), load_as_double(gammas + i));
      store_rounded(Tag<double>(), hn::IfThenElse(hn::IsNaN(product), nan(), product), weight + i);
    });
  }

  HWY_INLINE Line<W> line(int64_t i) const { return {splat(steepness[i]), splat(level[i])}; }

 private:
  static HWY_INLINE Vector<double> nan() { return splat(std::numeric_limits<double>::quiet_NaN()); }

  // As finite<W>() has it.
  static HWY_INLINE Vector<double> finite_lanes(Vector<double> v) {
    const auto largest = splat(static_cast<double>(std::numeric_limits<W>::max()));
    return hn::IfThenElse(hn::IsNaN(v), nan(), hn::Max(hn::Min(v, largest), hn::Neg(largest)));
  }
};

// Channels whose lines are computed together, and whose sums are folded together: but of one that has several blocks,
// the blocks one by one.
template <class T>
HWY_INLINE int64_t entries_abreast(const GroupShape& shape) {
  return blocks_in(shape.inner) == 1 ? Lines<T>::kMost : 1;
}

template <class T, class Extent>
HWY_INLINE Pack<Wide<T>> elements(Extent extent, const T* x, const Vector<Wide<T>>& mean, const Vector<Wide<T>>& rstd) {
  Pack<Wide<T>> pack = load_split(extent, x);
  if constexpr (Frame<T>::kNormalised) {
    each<kPackVectors<Wide<T>>>([&](size_t k) DESCEND_INLINED { pack.v[k] = hn::Mul(hn::Sub(pack.v[k], mean), rstd); });
  }
  return pack;
}

// x and dz of neighbouring packs. Lanes beyond the row have dy = 0 and so dz = 0.
template <class T, size_t kPacks>
struct Slopes {
  using W = Wide<T>;
  Pack<W> x[kPacks], dz[kPacks];

  template <class Extent>
  HWY_INLINE Slopes(Extent extent, const T* from_x, const T* from_dy, const Vector<W>& mean, const Vector<W>& rstd,
                    const Line<W>& line) {
    constexpr size_t kN = kPackVectors<W>, kAll = kPacks * kN;
    Vector<W> slope[kAll];
    each<kPacks>([&](size_t i) DESCEND_INLINED {
      x[i] = elements(part_of<W>(extent, i), from_x + i * kPackLanes<W>, mean, rstd);
    });
    each<kAll>([&](size_t k)
                   DESCEND_INLINED { slope[k] = hn::MulAdd(x[k / kN].v[k % kN], line.steepness, line.level); });
    swish_slopes<kBriefly<T>, W, kAll>(slope, slope);
    each<kPacks>([&](size_t i) DESCEND_INLINED {
      dz[i] = load_split(part_of<W>(extent, i), from_dy + i * kPackLanes<W>);
      each<kN>([&](size_t k) DESCEND_INLINED { dz[i].v[k] = hn::Mul(dz[i].v[k], slope[i * kN + k]); });
    });
  }
};

// The sums of n entries from their lanes, which are used up: of dz, and of dz * xhat.
template <class T>
HWY_INLINE void fold_sums(Vector<Wide<T>>* dz_lanes, Vector<Wide<T>>* dzx_lanes, int64_t n, const Frame<T>& frame,
                          double* dz_sums, double* dzx_sums) {
  using W = Wide<T>;
  const Tag<double> d;
  HWY_ALIGN W dz[kFoldRows<W>];
  HWY_ALIGN W dzx[kFoldRows<W>];
  if (n < Lines<T>::kFew) {
    for (int64_t i = 0; i < n; ++i) {
      dz_sums[i] = static_cast<double>(fold_vector(Tag<W>(), dz_lanes[i]));
      const double sum = static_cast<double>(fold_vector(Tag<W>(), dzx_lanes[i]));
      dzx_sums[i] = frame.unit * (sum - frame.origin * dz_sums[i]);
    }
    return;
  }
  for (int64_t i = n; i < kFoldRows<W>; ++i) dz_lanes[i] = dzx_lanes[i] = hn::Zero(Tag<W>());
  fold_rows<W>(dz_lanes, dz);
  fold_rows<W>(dzx_lanes, dzx);
  HWY_ALIGN double sums[2][kFoldRows<W>];
  for_each_row_vector(n, [&](int64_t i) HWY_ATTR {
    const auto sum = load_as_double(dz + i);
    const auto difference = hn::Sub(load_as_double(dzx + i), hn::Mul(splat(frame.origin), sum));
    hn::Store(sum, d, sums[0] + i);
    hn::Store(hn::Mul(splat(frame.unit), difference), d, sums[1] + i);
  });
  std::copy_n(sums[0], n, dz_sums);
  std::copy_n(sums[1], n, dzx_sums);
}

// A group's channels, or the blocks of such, one after the other: their lines and weights are computed for some
// together.
template <class T>
struct Entries {
  int64_t inner, blocks, abreast;

  explicit HWY_INLINE Entries(const GroupShape& shape)
      : inner(shape.inner), blocks(blocks_in(inner)), abreast(entries_abreast<T>(shape)) {}

  HWY_INLINE int64_t channel(int64_t entry) const { return entry / blocks; }
  HWY_INLINE int64_t begin(int64_t entry) const { return entry % blocks * kBlock; }
  HWY_INLINE int64_t end(int64_t entry) const { return HWY_MIN(begin(entry) + kBlock, inner); }
};

// The results of an entry.
template <bool kKept, bool kStream, class T>
struct EntryResults {
  using W = Wide<T>;
  static constexpr size_t kN = kPackVectors<W>;

  const T* x;
  const T* dy;
  T* dx;
  const W* dz;
  Line<W> line;
  Vector<W> mean, rstd, x_weight, dz_weight, base;

  HWY_INLINE void prefetch(int64_t j, int64_t ahead) const {
    if constexpr (!kStream) prefetch_pack<prefetch_near>(dx + j, ahead);
  }

  template <class Extent, size_t kPacks>
  HWY_INLINE void make(Extent extent, Packs<kPacks>, int64_t j) const {
    if constexpr (kKept) {
      each<kPacks>([&](size_t i) DESCEND_INLINED {
        const int64_t at = j + i * kPackLanes<W>;
        const auto part = part_of<W>(extent, i);
        finish(part, elements(part, x + at, mean, rstd), load_pack(Full(), dz + at), at);
      });
    } else {
      const Slopes<T, kPacks> slopes(extent, x + j, dy + j, mean, rstd, line);
      each<kPacks>([&](size_t i) DESCEND_INLINED {
        finish(part_of<W>(extent, i), slopes.x[i], slopes.dz[i], j + i * kPackLanes<W>);
      });
    }
  }

 private:
  template <class Extent>
  HWY_INLINE void finish(Extent extent, const Pack<W>& at_x, const Pack<W>& at_dz, int64_t j) const {
    Pack<W> result;
    each<kN>([&](size_t k) DESCEND_INLINED {
      const auto rest = hn::MulAdd(at_x.v[k], x_weight, base);
      result.v[k] = hn::MulSub(at_dz.v[k], dz_weight, rest);
      if constexpr (Frame<T>::kNormalised) result.v[k] = hn::Mul(rstd, result.v[k]);
    });
    store_split<kStream>(extent, result, dx + j);
  }
};

// The results of a group whose means are known.
template <bool kKept, bool kStream, class T>
class Results {
  using W = Wide<T>;

 public:
  HWY_INLINE Results(const GroupNormSwishGrad<T>& p, const GradGroup<T>& group)
      : p_(p),
        group_(group),
        entries_(p.shape),
        frame_(group.mean, group.rstd),
        mean_(splat(group.mean)),
        rstd_(splat(group.rstd)) {
    // rstd is among the coefficients where xhat is not at hand; else it comes last, which rounds no coefficient.
    const double c1 = static_cast<double>(group.mean_dz), c2 = static_cast<double>(group.mean_dzx);
    const W tilt = rounded<W>(frame_.unit * frame_.unit * c2);
    x_weight_ = splat(tilt);
    base_ = splat(rounded<W>(frame_.unit * c1 - frame_.origin * static_cast<double>(tilt)));
  }

  // From here on it is entries [first, first + n).
  HWY_INLINE void set_entries(int64_t first, int64_t n) {
    const int64_t channel = group_.channel + entries_.channel(first);
    if constexpr (!kKept) lines_.set_lines(p_, frame_, channel, n);
    lines_.set_weights(p_, frame_, channel, n);
  }

  // The i-th of these.
  HWY_INLINE EntryResults<kKept, kStream, T> entry(int64_t entry, int64_t i) const {
    const int64_t channel = entries_.channel(entry), offset = channel * entries_.inner;
    return {group_.x + offset,
            group_.dy + offset,
            group_.dx + offset,
            kKept ? group_.dz + channel * dz_pitch<W>(entries_.inner) : nullptr,
            kKept ? Line<W>() : lines_.line(i),
            mean_,
            rstd_,
            x_weight_,
            splat(lines_.weight[i]),
            base_};
  }

 private:
  const GroupNormSwishGrad<T>& p_;
  const GradGroup<T>& group_;
  const Entries<T> entries_;
  const Frame<T> frame_;
  const Vector<W> mean_, rstd_;
  Vector<W> x_weight_, base_;
  Lines<T> lines_;
};

// In the place of results where there are none to make.
struct NoResults {
  HWY_INLINE void set_entries(int64_t, int64_t) {}
  HWY_INLINE NoResults entry(int64_t, int64_t) const { return {}; }
  template <class Extent, class Count>
  HWY_INLINE void make(Extent, Count, int64_t) const {}
};

// Sums of blocks [first, last) of the group's channels, all channels' blocks counted through. In step with them another
// group's results are made: sums leave memory time that results lack.
template <bool kKeep, class T, class R>
HWY_INLINE void channel_sums(const GroupNormSwishGrad<T>& p, const GradGroup<T>& group, int64_t first, int64_t last,
                             R results) {
  using W = Wide<T>;
  constexpr size_t kN = kPackVectors<W>;
  const Entries<T> entries(p.shape);
  const int64_t inner = entries.inner;
  const Frame<T> frame(group.mean, group.rstd);
  const Vector<W> mean = splat(group.mean), rstd = splat(group.rstd);
  Lines<T> lines;
  Vector<W> dz_lanes[Lines<T>::kMost], dzx_lanes[Lines<T>::kMost];
  for (int64_t next = first; next < last; next += entries.abreast) {
    const int64_t n = HWY_MIN(entries.abreast, last - next);
    lines.set_lines(p, frame, group.channel + entries.channel(next), n);
    results.set_entries(next, n);
    for (int64_t e = 0; e < n; ++e) {
      const int64_t c = entries.channel(next + e);
      const Line<W> line = lines.line(e);
      const T* dy = group.dy + c * inner;
      const T* x = group.x + c * inner;
      const T* dx = group.dx + c * inner;
      W* dz = kKeep ? group.dz + c * dz_pitch<W>(inner) : nullptr;
      const auto due = results.entry(next + e, e);
      Pack<W> dz_sum = zero_pack<W>(), dzx_sum = zero_pack<W>();
      over_packs<W>(
          entries.begin(next + e), entries.end(next + e), [&](auto extent, auto packs, int64_t j) DESCEND_INLINED {
            constexpr size_t kPacks = decltype(packs)::value;
            constexpr int64_t kAhead =
                (std::is_same_v<R, NoResults> ? 2 * kAheadBytes : kAheadBytes / 2) / static_cast<int64_t>(sizeof(T));
            // There is time for memory here, and little in the second pass.
            for (int64_t at = j; at < j + int64_t{kPacks * kPackLanes<W>}; at += kPackLanes<W>) {
              prefetch_pack<prefetch_near>(x + at, kAhead);
              prefetch_pack<prefetch_near>(dy + at, kAhead);
              if constexpr (std::is_same_v<R, NoResults>) {
                if (!group.stream) prefetch_pack<prefetch_near>(dx + at, 0);
              } else {
                due.prefetch(at, kAhead);
              }
            }
            due.make(extent, packs, j);  // first: dz may be the other group's as yet
            const Slopes<T, kPacks> slopes(extent, x + j, dy + j, mean, rstd, line);
            each<kPacks>([&](size_t i) DESCEND_INLINED {
              if constexpr (kKeep) store(Full(), slopes.dz[i], dz + j + i * kPackLanes<W>);
              each<kN>([&](size_t k) DESCEND_INLINED { dz_sum.v[k] = hn::Add(dz_sum.v[k], slopes.dz[i].v[k]); });
              each<kN>([&](size_t k) DESCEND_INLINED {
                dzx_sum.v[k] = hn::MulAdd(slopes.dz[i].v[k], slopes.x[i].v[k], dzx_sum.v[k]);
              });
            });
          });
      dz_lanes[e] = fold_to_vector<W>(dz_sum.v);
      dzx_lanes[e] = fold_to_vector<W>(dzx_sum.v);
    }
    fold_sums<T>(dz_lanes, dzx_lanes, n, frame, group.dz_sums + next, group.dzx_sums + next);
  }
}

template <bool kKept, bool kStream, class T>
HWY_INLINE void channel_apply(const GroupNormSwishGrad<T>& p, const GradGroup<T>& group, int64_t first, int64_t last) {
  const Entries<T> entries(p.shape);
  Results<kKept, kStream, T> results(p, group);
  for (int64_t entry = first; entry < last; ++entry) {
    const int64_t i = (entry - first) % entries.abreast;
    if (i == 0) results.set_entries(entry, HWY_MIN(entries.abreast, last - entry));
    const auto due = results.entry(entry, i);
    over_packs<Wide<T>>(entries.begin(entry), entries.end(entry),
                        [&](auto extent, auto packs, int64_t j) DESCEND_INLINED { due.make(extent, packs, j); });
  }
}

// ---- Short channels: vectors run over them, and gamma and beta are there once an element.

template <class W, class Group>
struct Coefficients {
  Each<W> gamma, beta;
  Group mean, rstd;
  Vector<W> scale;
};

template <class T, class Extent, class C>
HWY_INLINE Vector<Wide<T>> normalised(Extent extent, const T* x, const C& at, int64_t j, size_t k) {
  return hn::Mul(hn::Sub(load(extent, x + j, k), at.mean.at(extent, j, k)), at.rstd.at(extent, j, k));
}

// dz and dz * xhat of n neighbouring elements.
template <class T, class C>
HWY_INLINE void flat_slopes(const T* dy, const T* x, const C& at, int64_t n, Wide<T>* dz, Wide<T>* dzx) {
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
    each_vector([&](size_t k, auto part, int64_t c, size_t v) HWY_ATTR {
      u[k] = hn::Mul(at.scale, hn::MulAdd(xhat[k], at.gamma.at(part, c, v), at.beta.at(part, c, v)));
    });
    swish_slopes<kBriefly<T>, W, kAll>(u, u);
    each_vector([&](size_t k, auto part, int64_t c, size_t v)
                    HWY_ATTR { u[k] = hn::Mul(load(part, dy + c, v), u[k]); });
    each<kPacks>([&](size_t i) DESCEND_INLINED {
      Pack<W> slopes, products;
      each<kN>([&](size_t v) DESCEND_INLINED {
        slopes.v[v] = u[i * kN + v];
        products.v[v] = hn::Mul(u[i * kN + v], xhat[i * kN + v]);
      });
      const int64_t c = j + static_cast<int64_t>(i * kPackLanes<W>);
      store(part_of<W>(extent, i), slopes, dz + c);
      store(part_of<W>(extent, i), products, dzx + c);
    });
  });
}

// Of channels of 2 to 4 elements, element after element in the lanes of a vector.
template <int kInner, class W>
HWY_INLINE int64_t interleaved_sums(const W* values, int64_t channels, double* sums) {
  const Tag<W> d;
  constexpr int64_t kLanes = kVectorLanes<W>;
  HWY_ALIGN W sum[kLanes];
  int64_t c = 0;
  for (; c + kLanes <= channels; c += kLanes, values += kInner * kLanes) {
    Vector<W> v[4];
    if constexpr (kInner == 2) hn::LoadInterleaved2(d, values, v[0], v[1]);
    if constexpr (kInner == 3) hn::LoadInterleaved3(d, values, v[0], v[1], v[2]);
    if constexpr (kInner == 4) hn::LoadInterleaved4(d, values, v[0], v[1], v[2], v[3]);
    each<kInner - 1>([&](size_t i) DESCEND_INLINED { v[0] = hn::Add(v[0], v[i + 1]); });
    hn::Store(v[0], d, sum);
    add_columns(sum, kLanes, true, sums + c);
  }
  return c;
}

// sums[c] = the sum of channel c's elements, behind which there is room for a vector.
template <class W>
HWY_INLINE void flat_sums(const W* values, int64_t channels, int64_t inner, double* sums) {
  constexpr int64_t kWorthFolding = 8;
  if (inner == 1) return add_columns(values, channels, true, sums);
  int64_t c = 0;
  if (inner >= kWorthFolding) {
    const Inside<W> tail(inner);
    HWY_ALIGN W folded[kTileRows<W>];
    for (int64_t count; c < channels; c += count) {
      count = HWY_MIN(kTileRows<W>, channels - c);
      fold_tile(values + c * inner, count, inner, tail, W{0}, Sum(), Sum(), folded);
      add_columns(folded, count, true, sums + c);
    }
    return;
  }
  if (inner == 2) c = interleaved_sums<2>(values, channels, sums);
  if (inner == 3) c = interleaved_sums<3>(values, channels, sums);
  if (inner == 4) c = interleaved_sums<4>(values, channels, sums);
  for (; c < channels; ++c) {
    const W* value = values + c * inner;
    W sum = value[0];
    for (int64_t s = 1; s < inner; ++s) sum += value[s];
    sums[c] = sum;
  }
}

template <class T, class C>
HWY_INLINE void flat_apply(const T* x, const Wide<T>* dz, const C& at, const auto& c1, const auto& c2, int64_t n,
                           T* dx) {
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

template <class T>
HWY_INLINE auto flat_coefficients(const GroupNormSwishGrad<T>& p, const GradGroup<T>& group, int64_t offset) {
  using W = Wide<T>;
  const int64_t at = group.channel * p.shape.inner + offset;
  return Coefficients<W, Same<W>>{Each<W>(group.gamma_each + at), Each<W>(group.beta_each + at), Same<W>(group.mean),
                                  Same<W>(group.rstd), splat(finite<W>(scale_of(p)))};
}

// Channels [first, last) of a group, some of them at a time.
template <class T>
HWY_INLINE void flat_channel_sums(const GroupNormSwishGrad<T>& p, const GradGroup<T>& group, int64_t first,
                                  int64_t last) {
  using W = Wide<T>;
  HWY_ALIGN W products[kFlatTile + kVectorLanes<W>], forgotten[kFlatTile + kVectorLanes<W>];
  const int64_t inner = p.shape.inner, tile = kFlatTile / inner;
  // Sums read beyond their channels, where others may write that share the group.
  const bool alone = first == 0 && last == grad_entries(p.shape);
  for (int64_t c = first; c < last; c += tile) {
    const int64_t channels = HWY_MIN(tile, last - c), offset = c * inner;
    W* dz = group.dz && alone ? group.dz + offset : forgotten;
    flat_slopes(group.dy + offset, group.x + offset, flat_coefficients(p, group, offset), channels * inner, dz,
                products);
    flat_sums(dz, channels, inner, group.dz_sums + c);
    flat_sums(products, channels, inner, group.dzx_sums + c);
    if (group.dz && !alone) std::copy_n(dz, channels * inner, group.dz + offset);
  }
}

template <class T>
HWY_INLINE void flat_channel_apply(const GroupNormSwishGrad<T>& p, const GradGroup<T>& group, int64_t first,
                                   int64_t last) {
  using W = Wide<T>;
  HWY_ALIGN W products[kFlatTile], again[kFlatTile];
  const int64_t inner = p.shape.inner, tile = kFlatTile / inner;
  const Same<W> c1(group.mean_dz), c2(group.mean_dzx);
  for (int64_t c = first; c < last; c += tile) {
    const int64_t n = HWY_MIN(tile, last - c) * inner, offset = c * inner;
    const auto at = flat_coefficients(p, group, offset);
    W* dz = group.dz ? group.dz + offset : again;
    if (!group.dz) flat_slopes(group.dy + offset, group.x + offset, at, n, dz, products);
    flat_apply(group.x + offset, dz, at, c1, c2, n, group.dx + offset);
  }
}

// ---- What both have in common.

template <class T>
void group_norm_swish_grad_sums(const GroupNormSwishGrad<T>& p, const GradGroup<T>& group, int64_t first,
                                int64_t last) {
  if (has_short_channels(p.shape)) return flat_channel_sums(p, group, first, last);
  group.dz ? channel_sums<true>(p, group, first, last, NoResults())
           : channel_sums<false>(p, group, first, last, NoResults());
}

// The sums of a group, and in step with them the results of the one above.
template <class T>
void group_norm_swish_grad_in_step(const GroupNormSwishGrad<T>& p, const GradGroup<T>& group,
                                   const GradGroup<T>& above) {
  const int64_t entries = grad_entries(p.shape);
  above.stream ? channel_sums<true>(p, group, 0, entries, Results<true, true, T>(p, above))
               : channel_sums<true>(p, group, 0, entries, Results<true, false, T>(p, above));
}

template <class T>
void group_norm_swish_grad_apply(const GroupNormSwishGrad<T>& p, const GradGroup<T>& group, int64_t first,
                                 int64_t last) {
  if (has_short_channels(p.shape)) return flat_channel_apply(p, group, first, last);
  if (group.stream) {
    group.dz ? channel_apply<true, true>(p, group, first, last) : channel_apply<false, true>(p, group, first, last);
    flush_streams();
  } else {
    group.dz ? channel_apply<true, false>(p, group, first, last) : channel_apply<false, false>(p, group, first, last);
  }
}

// With fewer channels their sums are added one after the other: of one group alone, and of several side by side.
inline constexpr int64_t kFewChannels = 8, kFewChannelsAbreast = 32;

// The sum of gamma * values, in double: one after the other where there are fewer than `few`, else in lanes.
template <class W>
HWY_INLINE double weighted_sum(const W* gamma, const double* values, int64_t n, int64_t few) {
  if (n < few) {
    double total = 0;
    for (int64_t i = 0; i < n; ++i) total += static_cast<double>(gamma[i]) * values[i];
    return total;
  }
  const Tag<double> d;
  Pack<double> sum = zero_pack<double>();
  for_each_pack<double>(0, n, [&](auto extent, int64_t i) HWY_ATTR {
    each<kPackVectors<double>>([&](size_t k) DESCEND_INLINED {
      const auto weight = widen_to_double(d, load_bits(extent, hn::Rebind<W, Tag<double>>(), gamma + i, k));
      sum.v[k] = hn::MulAdd(weight, load_bits(extent, d, values + i, k), sum.v[k]);
    });
  });
  return fold(sum);
}

// to[g] = the mean of gamma * values over the elements of small group g, from sums of its channels: weighted_sum() of
// each, several side by side. There are at most kSmallTile values; they are aligned, and room for a pack follows them
// and the means.
template <class W>
HWY_INLINE void weighted_means(const W* gamma, const double* values, int64_t groups, int64_t channels, double elements,
                               W* to) {
  const Tag<double> d;
  constexpr int64_t kAbreast = 4;
  HWY_ALIGN double products[kSmallTile + kPackLanes<W>], sums[kSmallTile + kPackLanes<W>];
  int64_t g = 0;
  if (channels < kFewChannelsAbreast) {
    for_each_pack<W>(0, groups * channels, [&](auto extent, int64_t c) HWY_ATTR {
      constexpr size_t kCount = kPackLanes<W> / kVectorLanes<double>;
      Vector<double> wide[kCount];
      to_double<W, kPackVectors<W>>(load_pack(extent, gamma + c).v, wide);
      each<kCount>([&](size_t k) DESCEND_INLINED {
        const int64_t at = c + static_cast<int64_t>(k * kVectorLanes<double>);
        hn::Store(hn::Mul(wide[k], hn::Load(d, values + at)), d, products + at);
      });
    });
    for (; g + kAbreast <= groups; g += kAbreast) {
      double sum[kAbreast] = {};
      const double* product = products + g * channels;
      for (int64_t c = 0; c < channels; ++c) {
        each<kAbreast>([&](size_t k) { sum[k] += product[static_cast<int64_t>(k) * channels + c]; });
      }
      each<kAbreast>([&](size_t k) { sums[g + static_cast<int64_t>(k)] = sum[k]; });
    }
  }
  for (; g < groups; ++g) {
    sums[g] = weighted_sum(gamma + g * channels, values + g * channels, channels, kFewChannelsAbreast);
  }
  for (g = 0; g < groups; g += kVectorLanes<double>) {
    hn::StoreU(narrow_double<W>(d, hn::Div(hn::Load(d, sums + g), hn::Set(d, elements))), hn::Rebind<W, Tag<double>>(),
               to + g);
  }
}

// From entries to sums of channels, which go to the slots, and to the two means.
template <class T>
void group_norm_swish_grad_means(const GroupNormSwishGrad<T>& p, GradGroup<T>& group, int64_t slot, bool fresh) {
  const int64_t channels = p.shape.group_channels(), inner = p.shape.inner;
  const int64_t blocks = has_short_channels(p.shape) ? 1 : blocks_in(inner);
  for (double* sums : {group.dz_sums, group.dzx_sums}) {
    for (int64_t c = 0; blocks > 1 && c < channels; ++c) {
      double sum = sums[c * blocks];
      for (int64_t b = 1; b < blocks; ++b) sum += sums[c * blocks + b];
      sums[c] = sum;
    }
  }
  const double elements = static_cast<double>(channels * inner);
  const Wide<T>* gamma = p.gamma + group.channel;
  group.mean_dz = static_cast<Wide<T>>(weighted_sum(gamma, group.dz_sums, channels, kFewChannels) / elements);
  group.mean_dzx = static_cast<Wide<T>>(weighted_sum(gamma, group.dzx_sums, channels, kFewChannels) / elements);
  const int64_t at = slot * p.shape.channels + group.channel;
  if (p.dbeta_slots) add_columns(group.dz_sums, channels, fresh, p.dbeta_slots + at);
  if (p.dgamma_slots) add_columns(group.dzx_sums, channels, fresh, p.dgamma_slots + at);
}

// ---- What a thread does with groups of its own.

// Groups [first, last) of a sample where groups are small: as many at a time as fit a tile.
template <class T>
HWY_INLINE void small_groups(const GroupNormSwishGrad<T>& p, const Wide<T>* gamma_each, const Wide<T>* beta_each,
                             const Repeat<Wide<T>>& for_elements, int64_t n, int64_t first, int64_t last, int64_t slot,
                             bool fresh) {
  using W = Wide<T>;
  constexpr int64_t kTile = kSmallTile + kPackLanes<W>;  // a pack that begins among the numbers may have some beyond
  HWY_ALIGN W mean[kTile], rstd[kTile], c1[kTile], c2[kTile], dz[kTile], dzx[kTile], of_group[kTile];
  HWY_ALIGN double dz_sums[kTile], dzx_sums[kTile];
  const int64_t channels = p.shape.group_channels(), elements = p.shape.group_elements();
  const int64_t tile = kSmallTile / elements;
  for (int64_t g = first; g < last; g += tile) {
    const int64_t groups = HWY_MIN(tile, last - g), all = groups * elements;
    const int64_t offset = g * elements, channel = g * channels;
    const auto spread = [&](const W* from, W* to) HWY_ATTR {
      for_each_pack<W>(0, groups, [&](auto extent, int64_t i) HWY_ATTR {
        store(Full(), load_pack(extent, from + i), of_group + i);
      });
      for_elements(of_group, all, to);
    };
    spread(p.mean + n * p.shape.groups + g, mean);
    spread(p.rstd + n * p.shape.groups + g, rstd);
    const Coefficients<W, Each<W>> at{Each<W>(gamma_each + offset), Each<W>(beta_each + offset), Each<W>(mean),
                                      Each<W>(rstd), splat(finite<W>(scale_of(p)))};
    const T* x = p.x.row(n) + offset;
    flat_slopes(p.dy.row(n) + offset, x, at, all, dz, dzx);
    flat_sums(dz, groups * channels, p.shape.inner, dz_sums);
    flat_sums(dzx, groups * channels, p.shape.inner, dzx_sums);
    weighted_means(p.gamma + channel, dz_sums, groups, channels, static_cast<double>(elements), of_group);
    for_elements(of_group, all, c1);
    weighted_means(p.gamma + channel, dzx_sums, groups, channels, static_cast<double>(elements), of_group);
    for_elements(of_group, all, c2);
    const int64_t slot_at = slot * p.shape.channels + channel;
    if (p.dbeta_slots) add_columns(dz_sums, groups * channels, fresh, p.dbeta_slots + slot_at);
    if (p.dgamma_slots) add_columns(dzx_sums, groups * channels, fresh, p.dgamma_slots + slot_at);
    flat_apply(x, dz, at, Each<W>(c1), Each<W>(c2), all, p.dx.row(n) + offset);
  }
}

// Chunks [first, last). `own` lacks what differs from group to group.
template <class T>
void group_norm_swish_grad_chunks(const GroupNormSwishGrad<T>& p, const GroupCut& cut, int64_t first, int64_t last,
                                  GradGroup<T> own) {
  const GroupShape& shape = p.shape;
  const int64_t elements = shape.group_elements(), entries = grad_entries(shape);
  if (has_short_channels(shape) && elements < kSmallGradElements) {
    const Repeat<Wide<T>> for_elements(elements);
    for (int64_t i = first; i < last; ++i) {
      const GroupChunk chunk = cut.chunk(shape, i);
      for (int64_t n = chunk.first_sample; n < chunk.last_sample; ++n) {
        small_groups(p, own.gamma_each, own.beta_each, for_elements, n, chunk.first_group, chunk.last_group, chunk.slot,
                     n == chunk.first_sample);
      }
    }
    return;
  }
  GradGroup<T> above{};  // the group whose results are yet to be made
  for (int64_t i = first; i < last; ++i) {
    const GroupChunk chunk = cut.chunk(shape, i);
    for (int64_t n = chunk.first_sample; n < chunk.last_sample; ++n) {
      for (int64_t g = chunk.first_group; g < chunk.last_group; ++g) {
        own.place(p, n, g);
        if (above.in_step) {
          group_norm_swish_grad_in_step(p, own, above);
        } else {
          group_norm_swish_grad_sums(p, own, 0, entries);
        }
        group_norm_swish_grad_means(p, own, chunk.slot, n == chunk.first_sample);
        if (own.in_step) {
          above = own;
        } else {
          group_norm_swish_grad_apply(p, own, 0, entries);
        }
      }
    }
  }
  if (above.in_step) group_norm_swish_grad_apply(p, above, 0, entries);
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace descend::kernels {
namespace {

size_t padded(size_t bytes) { return (bytes + 127) / 64 * 64; }

// Scratch: gamma and beta once an element of a sample where that is not what they are anyway; then one buffer for each
// chunk in work, with the sums of a group's entries and its dz.
struct Scratch {
  size_t each = 0;  // bytes of gamma_each or beta_each
  size_t sums = 0;  // bytes of one of the two arrays of sums
  size_t dz = 0;
  size_t buffers = 0;

  template <class W>
  static Scratch of(const GroupShape& shape, int64_t chunks) {
    constexpr int64_t kKeptElements = int64_t{1} << 20;  // of a shared group; beyond, memory costs more than exp
    Scratch scratch;
    const int64_t elements = shape.group_elements();
    if (has_short_channels(shape) && shape.inner > 1) {
      scratch.each = padded(static_cast<size_t>(shape.channels * shape.inner) * sizeof(W));
    }
    scratch.sums = padded(static_cast<size_t>(grad_entries(shape)) * sizeof(double));
    if (elements <= kKeptElements) {
      const int64_t kept = has_short_channels(shape) ? elements : shape.group_channels() * dz_pitch<W>(shape.inner);
      scratch.dz = padded(static_cast<size_t>(kept) * sizeof(W));
    }
    scratch.buffers = static_cast<size_t>(chunks);
    return scratch;
  }
  size_t buffer() const { return 2 * sums + dz; }
  size_t bytes() const { return 2 * each + buffers * buffer(); }

  template <class T>
  void lay_out(void* buffer, GradGroup<T>& group) const {
    char* memory = static_cast<char*>(buffer);
    group.dz_sums = reinterpret_cast<double*>(memory);
    group.dzx_sums = reinterpret_cast<double*>(memory + sums);
    group.dz = dz ? reinterpret_cast<Wide<T>*>(memory + 2 * sums) : nullptr;
  }
};

template <class T>
int64_t bytes_moved(const GroupShape& shape) {
  return 3 * shape.elements() * static_cast<int64_t>(sizeof(T));
}

// Whether dx is stored past the caches where it is aligned.
template <class T>
bool may_stream(const GroupShape& shape) {
  const int64_t channel_bytes = shape.inner * static_cast<int64_t>(sizeof(T));
  return !has_short_channels(shape) && channel_bytes % 64 == 0 && exceeds_kept(bytes_moved<T>(shape));
}

// Whether a group's results are better made in step with the next group's sums. Those leave memory time that results
// past the caches lack, and ways through short channels are shared; a group that is not split is small enough for its
// x, dy and dz to stay in a cache until then.
template <class T>
bool work_in_step(const GroupShape& shape, bool stream) {
  constexpr int64_t kShort = 256;
  if (has_short_channels(shape) || split_groups(shape)) return false;
  return stream || (shape.inner < kShort && exceeds_kept(bytes_moved<T>(shape)));
}

template <class T>
Scratch scratch_of(const GroupShape& shape) {
  const int64_t chunks = split_groups(shape) ? 1 : cut_groups(shape, true).chunks();
  return Scratch::of<Wide<T>>(shape, chunks);
}

template <class W>
void spread_channels(const W* from, const GroupShape& shape, W* to) {
  constexpr int64_t kChannels = 4096;
  parallel_for(ceil_div(shape.channels, kChannels), shape.channels * shape.inner * 4, [&](int64_t chunk) {
    const int64_t end = std::min((chunk + 1) * kChannels, shape.channels);
    for (int64_t c = chunk * kChannels; c < end; ++c) std::fill_n(to + c * shape.inner, shape.inner, from[c]);
  });
}

template <class T>
void by_groups(const GroupNormSwishGrad<T>& p, const Scratch& scratch, void* memory, const GradGroup<T>& each) {
  static const auto run = DESCEND_CHOOSE(group_norm_swish_grad_chunks<T>);
  const GroupCut cut = cut_groups(p.shape, true);
  const int64_t chunks = cut.chunks(), take = each.in_step ? chunks_to_take(chunks) : 1;
  Buffers buffers(memory, scratch.buffer());
  parallel_for(ceil_div(chunks, take), group_work(p.shape, p.shape.elements()), [&](int64_t i) {
    const Buffers::Taken taken(buffers);
    GradGroup<T> own = each;
    scratch.lay_out(taken.get(), own);
    run(p, cut, i * take, std::min((i + 1) * take, chunks), own);
  });
}

// The threads share one group after the other; one slot is enough.
template <class T>
void by_pieces(const GroupNormSwishGrad<T>& p, const Scratch& scratch, void* memory, GradGroup<T> group) {
  static const auto sums = DESCEND_CHOOSE(group_norm_swish_grad_sums<T>);
  static const auto means = DESCEND_CHOOSE(group_norm_swish_grad_means<T>);
  static const auto apply = DESCEND_CHOOSE(group_norm_swish_grad_apply<T>);
  const int64_t entries = grad_entries(p.shape);
  const int64_t entry_elements = has_short_channels(p.shape) ? p.shape.inner : std::min(p.shape.inner, kBlock);
  const int64_t piece = std::max<int64_t>(kPieceElements / entry_elements, 1);
  const int64_t pieces = ceil_div(entries, piece);
  const int64_t work = group_work(p.shape, p.shape.group_elements());
  scratch.lay_out(memory, group);
  for (int64_t n = 0; n < p.shape.samples; ++n) {
    for (int64_t g = 0; g < p.shape.groups; ++g) {
      group.place(p, n, g);
      const auto end = [&](int64_t i) { return std::min((i + 1) * piece, entries); };
      parallel_for(pieces, work, [&](int64_t i) { sums(p, group, i * piece, end(i)); });
      {
        const FixedFpEnvironment environment;
        means(p, group, 0, n == 0);
      }
      parallel_for(pieces, work, [&](int64_t i) { apply(p, group, i * piece, end(i)); });
    }
  }
}

}  // namespace

template <class T>
int64_t group_norm_swish_grad_slots(const GroupShape& shape) {
  if (shape.elements() == 0 || split_groups(shape)) return 1;
  return cut_groups(shape, true).sample_chunks;
}

template <class T>
size_t group_norm_swish_grad_scratch(const GroupShape& shape) {
  return shape.elements() == 0 ? 0 : scratch_of<T>(shape).bytes();
}

template <class T>
void group_norm_swish_grad(const GroupNormSwishGrad<T>& p, void* memory) {
  const GroupShape& shape = p.shape;
  if (shape.elements() == 0) {
    if (p.dgamma_slots) std::fill_n(p.dgamma_slots, shape.channels, 0.0);
    if (p.dbeta_slots) std::fill_n(p.dbeta_slots, shape.channels, 0.0);
    return;
  }
  const Scratch scratch = scratch_of<T>(shape);
  char* rest = static_cast<char*>(memory) + 2 * scratch.each;
  GradGroup<T> each{};
  each.gamma_each = p.gamma;
  each.beta_each = p.beta;
  if (scratch.each > 0) {
    auto* gamma = static_cast<Wide<T>*>(memory);
    auto* beta = reinterpret_cast<Wide<T>*>(static_cast<char*>(memory) + scratch.each);
    spread_channels(p.gamma, shape, gamma);
    spread_channels(p.beta, shape, beta);
    each.gamma_each = gamma;
    each.beta_each = beta;
  }
  each.stream = may_stream<T>(shape) && are_aligned(p.dx);
  each.in_step = work_in_step<T>(shape, each.stream);
  split_groups(shape) ? by_pieces(p, scratch, rest, each) : by_groups(p, scratch, rest, each);
}

#define DESCEND_INSTANTIATE(T)                                               \
  template int64_t group_norm_swish_grad_slots<T>(const GroupShape& shape);  \
  template size_t group_norm_swish_grad_scratch<T>(const GroupShape& shape); \
  template void group_norm_swish_grad<T>(const GroupNormSwishGrad<T>& problem, void* scratch);
DESCEND_INSTANTIATE(float16)
DESCEND_INSTANTIATE(bfloat16)
DESCEND_INSTANTIATE(float)
DESCEND_INSTANTIATE(double)

}  // namespace descend::kernels
#endif  // HWY_ONCE
