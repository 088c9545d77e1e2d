#include "kernels/group_norm_swish_grad.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <type_traits>

#include "kernels/stores.h"
#include "kernels/tame.h"
#include "runtime/fp_environment.h"
#include "runtime/parallel.h"

#define HWY_TARGET_INCLUDE "kernels/group_norm_swish_grad.cpp"
#include "kernels/dispatch.h"
#include "kernels/fold_rows-inl.h"
#include "kernels/pack-inl.h"
#include "kernels/spread-inl.h"
#include "kernels/swish-inl.h"

namespace descend::kernels {
#ifndef DESCEND_GROUP_NORM_SWISH_GRAD_TYPES
#define DESCEND_GROUP_NORM_SWISH_GRAD_TYPES

// Elements that are worked on at a time of short channels: what is computed of them and what is read next fit a
// first-level cache. Vectors run over channels, too.
inline constexpr int64_t kFlatTile = 1024;

// With so many elements of a channel, gamma and beta are sooner spread over them tile by tile than fetched from another
// thread, which has done so for a whole sample.
inline constexpr int64_t kSpreadByTile = 16;

// Groups of short channels with fewer elements are small: several are worked on at a time.
inline constexpr int64_t kSmallGradElements = 192;

// What is subtracted from an element's gamma * dz: level + tilt * element. Of xhat these are the mean of gamma * dz and
// that of gamma * dz * xhat.
template <class W>
struct Plane {
  W tilt, level;
};

// A NaN is the one that store() takes for bfloat16.
template <class W>
HWY_INLINE W rounded(double value) {
  return std::isnan(value) ? std::numeric_limits<W>::quiet_NaN() : static_cast<W>(value);
}

// One group, and where its sums go. An entry is a channel, or a block of one where channels are long; where they are
// short, a tile of them.
template <class T>
struct GradGroup {
  const T* dy;
  const T* x;
  T* dx;
  Wide<T> mean, rstd;
  const T* next_dy;  // of the group that comes next, where channels are short
  const T* next_x;
  int64_t channel;            // the group's first
  const Wide<T>* gamma_each;  // one number an element of the sample, for the flat path; null: made there
  const Wide<T>* beta_each;
  double* dz_sums;      // [entries]; where channels are short, times their gamma
  double* dzx_sums;     // [entries]: of that times xhat
  ColumnSums<T> dbeta;  // [channels of the group]: where the sums of channels go, if they are wanted
  ColumnSums<T> dgamma;
  bool fresh;   // whether nothing is in slots as yet
  Wide<T>* dz;  // [elements], or null where it is computed again rather than kept; see whole_packs(), tile_pitch()
  Plane<Wide<T>> plane;  // set once the sums are there
  bool wild;             // see kUsuallyNormalised
  bool ask;              // whether what is next is worth asking for
  bool stream;           // whether dx is stored past the caches
  bool in_step;          // whether dx is made in step with the next group's sums

  void place(const GroupNormSwishGrad<T>& p, int64_t sample, int64_t index, int64_t slot, bool first_of_slot) {
    const int64_t offset = index * p.shape.group_elements();
    dy = p.dy.row(sample) + offset;
    x = p.x.row(sample) + offset;
    dx = p.dx.row(sample) + offset;
    mean = rounded<Wide<T>>(p.mean[sample * p.shape.groups + index]);
    rstd = rounded<Wide<T>>(p.rstd[sample * p.shape.groups + index]);
    wild = false;
    channel = index * p.shape.group_channels();
    const int64_t at = slot * p.shape.channels + channel;
    dbeta = p.dbeta.from(at);
    dgamma = p.dgamma.from(at);
    fresh = first_of_slot;
  }

  void set_next(const GroupNormSwishGrad<T>& p, int64_t sample, int64_t index) {
    const int64_t offset = index * p.shape.group_elements();
    next_dy = p.dy.row(sample) + offset;
    next_x = p.x.row(sample) + offset;
  }
};

// How long channels are read: normalised; but elements of 16 bits are taken as they are, since the digits that they
// lack are more than what rounding loses where the mean is large. The coefficients then make up for it. Where that
// would not do, the group is wild and is read normalised after all: see is_tame_group().
template <class T>
inline constexpr bool kUsuallyNormalised = sizeof(T) != 2;

struct Frame {
  double origin = 0, unit = 1;  // xhat = (element - origin) * unit
};

template <bool kNormalised, class T>
HWY_INLINE Frame frame_of(const GradGroup<T>& group) {
  if constexpr (kNormalised) return {};
  return {static_cast<double>(group.mean), static_cast<double>(group.rstd)};
}

// The plane of xhat as one of elements that are read in a frame, times its unit.
template <class W>
HWY_INLINE Plane<W> plane_in(const Frame& frame, const Plane<W>& of_xhat) {
  const double c1 = static_cast<double>(of_xhat.level), c2 = static_cast<double>(of_xhat.tilt);
  const W tilt = rounded<W>(frame.unit * frame.unit * c2);
  return {tilt, rounded<W>(frame.unit * c1 - frame.origin * static_cast<double>(tilt))};
}

// Not infinity where none is: it times 0 is NaN. Where one is, NaN, as is then the slope of swish.
template <class W>
HWY_INLINE W finite(double value) {
  constexpr double kLargest = static_cast<double>(std::numeric_limits<W>::max());
  if (!std::isfinite(value)) return std::numeric_limits<W>::quiet_NaN();
  return static_cast<W>(std::clamp(value, -kLargest, kLargest));
}

// Where the slope of swish is computed the brief way, in units of -ln 2.
template <class T>
HWY_INLINE double scale_of(const GroupNormSwishGrad<T>& p) {
  return static_cast<double>(p.scale) * (kBriefly<T> ? -std::numbers::log2e : 1.0);
}

// Short channels that are worked on at a time: a multiple of those that are folded together.
inline int64_t tile_channels(const GroupShape& shape) {
  constexpr int64_t kFolded = 16;
  return std::min(kFlatTile / shape.inner / kFolded * kFolded, shape.group_channels());
}

inline int64_t grad_entries(const GroupShape& shape) {
  const int64_t channels = shape.group_channels();
  return has_short_channels(shape) ? ceil_div(channels, tile_channels(shape)) : channels * blocks_in(shape.inner);
}

// Behind the numbers of a tile: what sums of channels read beyond them.
template <class W>
inline constexpr int64_t kFlatRoom = 256 / sizeof(W);

// Where channels are short, the dz of each tile starts at a multiple of so many elements.
template <class W>
HWY_INLINE int64_t tile_pitch(const GroupShape& shape) {
  return whole_packs<W>(tile_channels(shape) * shape.inner) + kFlatRoom<W>;
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

  HWY_INLINE void set_lines(const GroupNormSwishGrad<T>& p, const Frame& frame, int64_t channel, int64_t n) {
    const double scale = scale_of(p);
    const auto set_one = [&](int64_t i) {
      const double slope = static_cast<double>(p.gamma[channel + i]) * frame.unit;
      const double beta = static_cast<double>(p.beta[channel + i]), s = within_range(scale, slope, beta);
      steepness[i] = finite<W>(slope * s);
      level[i] = finite<W>(beta * s - frame.origin * static_cast<double>(steepness[i]));
    };
    if (n < kFew) {
      for (int64_t i = 0; i < n; ++i) set_one(i);
      return;
    }
    const Tag<double> d;
    auto steepest = hn::Zero(d);
    HWY_ALIGN W gammas[kRoom];
    HWY_ALIGN W betas[kRoom];
    widen_packs(p.gamma + channel, n, gammas);
    widen_packs(p.beta + channel, n, betas);
    for_each_row_vector(n, [&](int64_t i) HWY_ATTR {
      const auto gamma = load_as_double(gammas + i), beta = load_as_double(betas + i);
      const auto u_slope = hn::Mul(hn::Mul(gamma, splat(frame.unit)), splat(scale)),
                 u_beta = hn::Mul(beta, splat(scale));
      steepest = hn::Max(steepest, hn::Max(hn::Abs(u_slope), hn::Abs(u_beta)));
      const auto slope = store_rounded(d, finite_lanes(u_slope), steepness + i);
      store_rounded(d, finite_lanes(hn::Sub(u_beta, hn::Mul(splat(frame.origin), slope))), level + i);
    });
    if (HWY_UNLIKELY(!hn::AllTrue(d, hn::Le(steepest, splat(kSteepest))))) {
      for (int64_t i = 0; i < n; ++i) set_one(i);
    }
  }

  HWY_INLINE void set_weights(const GroupNormSwishGrad<T>& p, const Frame& frame, int64_t channel, int64_t n) {
    if (n < kFew) {
      for (int64_t i = 0; i < n; ++i) {
        weight[i] = rounded<W>(frame.unit * static_cast<double>(p.gamma[channel + i]));
      }
      return;
    }
    HWY_ALIGN W gammas[kRoom];
    widen_packs(p.gamma + channel, n, gammas);
    for_each_row_vector(n, [&](int64_t i) HWY_ATTR {
      const auto product = hn::Mul(splat(frame.unit), load_as_double(gammas + i));
      store_rounded(Tag<double>(), hn::IfThenElse(hn::IsNaN(product), nan(), product), weight + i);
    });
  }

  HWY_INLINE Line<W> line(int64_t i) const { return {splat(steepness[i]), splat(level[i])}; }

 private:
  static constexpr int64_t kRoom = HWY_MAX(kMost, static_cast<int64_t>(kPackLanes<W>));
  static constexpr double kSteepest = static_cast<double>(std::numeric_limits<W>::max()) / 4;

  // The scale, or, where s * z would leave the range, one that keeps it within: sigmoid is 0 or 1 there as well.
  static HWY_INLINE double within_range(double scale, double slope, double beta) {
    const double largest = std::max(std::abs(slope), std::abs(beta));
    const bool fits = !(largest * std::abs(scale) > kSteepest) || std::isinf(largest) || std::isinf(scale);
    return fits ? scale : std::copysign(kSteepest / largest, scale);
  }

  static HWY_INLINE Vector<double> nan() { return splat(std::numeric_limits<double>::quiet_NaN()); }

  // As finite<W>() has it.
  static HWY_INLINE Vector<double> finite_lanes(Vector<double> v) {
    const auto largest = splat(static_cast<double>(std::numeric_limits<W>::max()));
    return hn::IfThenElse(hn::IsFinite(v), hn::Max(hn::Min(v, largest), hn::Neg(largest)), nan());
  }
};

// Channels whose lines are computed together, and whose sums are folded together: but of one that has several blocks,
// the blocks one by one.
template <class T>
HWY_INLINE int64_t entries_abreast(const GroupShape& shape) {
  return blocks_in(shape.inner) == 1 ? Lines<T>::kMost : 1;
}

template <bool kNormalised, class T, class Extent>
HWY_INLINE Pack<Wide<T>> elements(Extent extent, const T* x, const Vector<Wide<T>>& mean, const Vector<Wide<T>>& rstd) {
  Pack<Wide<T>> pack = load_pack(extent, x);
  if constexpr (kNormalised) {
    each<kPackVectors<Wide<T>>>([&](size_t k) DESCEND_INLINED { pack.v[k] = hn::Mul(hn::Sub(pack.v[k], mean), rstd); });
  }
  return pack;
}

// x and dz of neighbouring packs. Lanes beyond the row have dy = 0 and so dz = 0.
template <bool kNormalised, class T, size_t kPacks>
struct Slopes {
  using W = Wide<T>;
  Pack<W> x[kPacks], dz[kPacks];

  template <class Extent>
  HWY_INLINE Slopes(Extent extent, const T* from_x, const T* from_dy, const Vector<W>& mean, const Vector<W>& rstd,
                    const Line<W>& line) {
    constexpr size_t kN = kPackVectors<W>, kAll = kPacks * kN;
    Vector<W> slope[kAll];
    each<kPacks>([&](size_t i) DESCEND_INLINED {
      x[i] = elements<kNormalised>(part_of<W>(extent, i), from_x + i * kPackLanes<W>, mean, rstd);
    });
    each<kAll>([&](size_t k)
                   DESCEND_INLINED { slope[k] = hn::MulAdd(x[k / kN].v[k % kN], line.steepness, line.level); });
    swish_slopes<kBriefly<T>, W, kAll>(slope, slope, [&](size_t k) DESCEND_INLINED {
      return hn::And(hn::IsFinite(x[k / kN].v[k % kN]), hn::IsFinite(line.level));
    });
    each<kPacks>([&](size_t i) DESCEND_INLINED {
      dz[i] = load_pack(part_of<W>(extent, i), from_dy + i * kPackLanes<W>);
      each<kN>([&](size_t k) DESCEND_INLINED { dz[i].v[k] = hn::Mul(dz[i].v[k], slope[i * kN + k]); });
    });
  }
};

// The sums of n entries from their lanes, which are used up: of dz, and of dz * xhat.
template <bool kNormalised, class T>
HWY_INLINE void fold_sums(Vector<Wide<T>>* dz_lanes, Vector<Wide<T>>* dzx_lanes, int64_t n, const Frame& frame,
                          double* dz_sums, double* dzx_sums) {
  using W = Wide<T>;
  const Tag<double> d;
  HWY_ALIGN W dz[kFoldRows<W>];
  HWY_ALIGN W dzx[kFoldRows<W>];
  if (n < Lines<T>::kFew) {
    for (int64_t i = 0; i < n; ++i) {
      dz_sums[i] = static_cast<double>(fold_vector(Tag<W>(), dz_lanes[i]));
      const double sum = static_cast<double>(fold_vector(Tag<W>(), dzx_lanes[i]));
      dzx_sums[i] = kNormalised ? sum : frame.unit * (sum - frame.origin * dz_sums[i]);
    }
    return;
  }
  for (int64_t i = n; i < kFoldRows<W>; ++i) dz_lanes[i] = dzx_lanes[i] = hn::Zero(Tag<W>());
  fold_rows<W>(dz_lanes, dz);
  fold_rows<W>(dzx_lanes, dzx);
  HWY_ALIGN double sums[2][kFoldRows<W>];
  for_each_row_vector(n, [&](int64_t i) HWY_ATTR {
    const auto sum = load_as_double(dz + i);
    auto sum_x = load_as_double(dzx + i);
    if constexpr (!kNormalised) sum_x = hn::Mul(splat(frame.unit), hn::Sub(sum_x, hn::Mul(splat(frame.origin), sum)));
    hn::Store(sum, d, sums[0] + i);
    hn::Store(sum_x, d, sums[1] + i);
  });
  copy_few(sums[0], n, dz_sums);
  copy_few(sums[1], n, dzx_sums);
}

// A group's channels, or the blocks of such, one after the other: some together, of which the lines and weights are
// computed at once, and which begin and end at the same elements of their channels.
template <class T>
struct Entries {
  int64_t inner, blocks, abreast;

  explicit HWY_INLINE Entries(const GroupShape& shape)
      : inner(shape.inner), blocks(blocks_in(inner)), abreast(entries_abreast<T>(shape)) {}

  HWY_INLINE int64_t channel(int64_t entry) const { return entry / blocks; }
  HWY_INLINE int64_t begin(int64_t entry) const { return entry % blocks * kBlock; }
  HWY_INLINE int64_t end(int64_t entry) const { return HWY_MIN(begin(entry) + kBlock, inner); }
  HWY_INLINE int64_t pitch() const { return whole_packs<Wide<T>>(inner); }  // of dz
};

// The results of an entry.
template <bool kNormalised, bool kKept, bool kStream, class T>
struct EntryResults {
  using W = Wide<T>;
  static constexpr size_t kN = kPackVectors<W>;

  const T* x;
  const T* dy;
  T* dx;
  const W* dz;
  Line<W> line;
  Vector<W> mean, rstd, x_weight, dz_weight, base;

  // From here on it is the next channel's.
  HWY_INLINE void move_on(const Entries<T>& entries) {
    x += entries.inner;
    dy += entries.inner;
    dx += entries.inner;
    if constexpr (kKept) dz += entries.pitch();
  }

  HWY_INLINE void prefetch(int64_t j, int64_t ahead) const {
    if constexpr (!kStream) prefetch_pack<prefetch_near>(dx + j, ahead);
  }

  template <class Extent, size_t kPacks>
  HWY_INLINE void make(Extent extent, Packs<kPacks>, int64_t j) const {
    if constexpr (kKept) {
      each<kPacks>([&](size_t i) DESCEND_INLINED {
        const int64_t at = j + i * kPackLanes<W>;
        const auto part = part_of<W>(extent, i);
        finish(part, elements<kNormalised>(part, x + at, mean, rstd), load_pack(Full(), dz + at), at);
      });
    } else {
      const Slopes<kNormalised, T, kPacks> slopes(extent, x + j, dy + j, mean, rstd, line);
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
      if constexpr (kNormalised) result.v[k] = hn::Mul(rstd, result.v[k]);
    });
    store<kStream, Nan::kOfBfloat16, kInQuarters<T>>(extent, result, dx + j);
  }
};

// The results of a group whose means are known.
template <bool kNormalised, bool kKept, bool kStream, class T>
class Results {
  using W = Wide<T>;

 public:
  HWY_INLINE Results(const GroupNormSwishGrad<T>& p, const GradGroup<T>& group)
      : p_(p),
        group_(group),
        entries_(p.shape),
        frame_(frame_of<kNormalised>(group)),
        mean_(splat(group.mean)),
        rstd_(splat(group.rstd)) {
    // rstd is among the coefficients where xhat is not at hand; else it comes last, which rounds no coefficient.
    x_weight_ = splat(group.plane.tilt);
    base_ = splat(group.plane.level);
  }

  // Those of entries [first, first + n) from here on; set() makes them the i-th's.
  HWY_INLINE EntryResults<kNormalised, kKept, kStream, T> entries(int64_t first, int64_t n) {
    const int64_t channel = entries_.channel(first), offset = channel * entries_.inner;
    if constexpr (!kKept) lines_.set_lines(p_, frame_, group_.channel + channel, n);
    lines_.set_weights(p_, frame_, group_.channel + channel, n);
    return {group_.x + offset,
            group_.dy + offset,
            group_.dx + offset,
            kKept ? group_.dz + channel * entries_.pitch() : nullptr,
            Line<W>(),
            mean_,
            rstd_,
            x_weight_,
            Vector<W>(),
            base_};
  }

  HWY_INLINE void set(int64_t i, EntryResults<kNormalised, kKept, kStream, T>& due) const {
    if constexpr (!kKept) due.line = lines_.line(i);
    due.dz_weight = splat(lines_.weight[i]);
  }

 private:
  const GroupNormSwishGrad<T>& p_;
  const GradGroup<T>& group_;
  const Entries<T> entries_;
  const Frame frame_;
  const Vector<W> mean_, rstd_;
  Vector<W> x_weight_, base_;
  Lines<T> lines_;
};

// In the place of results where there are none to make.
struct NoResults {
  HWY_INLINE NoResults entries(int64_t, int64_t) { return {}; }
  HWY_INLINE void set(int64_t, NoResults&) const {}
  HWY_INLINE void move_on(const auto&) {}
  template <class Extent, class Count>
  HWY_INLINE void make(Extent, Count, int64_t) const {}
};

// Sums of blocks [first, last) of the group's channels, all channels' blocks counted through. In step with them another
// group's results are made: sums leave memory time that results lack.
template <bool kNormalised, bool kKeep, class T, class R>
HWY_INLINE void channel_sums(const GroupNormSwishGrad<T>& p, const GradGroup<T>& group, int64_t first, int64_t last,
                             R results) {
  using W = Wide<T>;
  constexpr size_t kN = kPackVectors<W>;
  const Entries<T> entries(p.shape);
  const int64_t inner = entries.inner;
  const Frame frame = frame_of<kNormalised>(group);
  const Vector<W> mean = splat(group.mean), rstd = splat(group.rstd);
  Lines<T> lines;
  Vector<W> dz_lanes[Lines<T>::kMost], dzx_lanes[Lines<T>::kMost];
  for (int64_t next = first; next < last; next += entries.abreast) {
    const int64_t n = HWY_MIN(entries.abreast, last - next);
    const int64_t channel = entries.channel(next), begin = entries.begin(next), end = entries.end(next);
    lines.set_lines(p, frame, group.channel + channel, n);
    auto due = results.entries(next, n);
    const T* dy = group.dy + channel * inner;
    const T* x = group.x + channel * inner;
    const T* dx = group.dx + channel * inner;
    W* dz = kKeep ? group.dz + channel * entries.pitch() : nullptr;
    for (int64_t e = 0; e < n; ++e) {
      const Line<W> line = lines.line(e);
      results.set(e, due);
      Pack<W> dz_sum = zero_pack<W>(), dzx_sum = zero_pack<W>();
      over_packs<W>(begin, end, [&](auto extent, auto packs, int64_t j) DESCEND_INLINED {
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
        const Slopes<kNormalised, T, kPacks> slopes(extent, x + j, dy + j, mean, rstd, line);
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
      x += inner;
      dy += inner;
      dx += inner;
      if constexpr (kKeep) dz += entries.pitch();
      due.move_on(entries);
    }
    fold_sums<kNormalised, T>(dz_lanes, dzx_lanes, n, frame, group.dz_sums + next, group.dzx_sums + next);
  }
}

template <bool kNormalised, bool kKept, bool kStream, class T>
HWY_INLINE void channel_apply(const GroupNormSwishGrad<T>& p, const GradGroup<T>& group, int64_t first, int64_t last) {
  const Entries<T> entries(p.shape);
  Results<kNormalised, kKept, kStream, T> results(p, group);
  for (int64_t next = first; next < last; next += entries.abreast) {
    const int64_t n = HWY_MIN(entries.abreast, last - next);
    auto due = results.entries(next, n);
    for (int64_t e = 0; e < n; ++e) {
      results.set(e, due);
      over_packs<Wide<T>>(entries.begin(next), entries.end(next),
                          [&](auto extent, auto packs, int64_t j) DESCEND_INLINED { due.make(extent, packs, j); });
      due.move_on(entries);
    }
  }
}

// ---- Short channels: vectors run over them, and gamma and beta are there once an element.

template <class W, class Group>
struct Coefficients {
  Each<W> gamma, beta;
  Group mean, rstd;
  Vector<W> scale;
};

template <class T, class Group>
HWY_INLINE Coefficients<Wide<T>, Group> coefficients(const GroupNormSwishGrad<T>& p, const Wide<T>* gamma,
                                                     const Wide<T>* beta, Group mean, Group rstd) {
  using W = Wide<T>;
  return {Each<W>(gamma), Each<W>(beta), mean, rstd, splat(finite<W>(scale_of(p)))};
}

template <class T, class Extent, class C>
HWY_INLINE Vector<Wide<T>> normalised(Extent extent, const T* x, const C& at, int64_t j, size_t k) {
  return hn::Mul(hn::Sub(load(extent, x + j, k), at.mean.at(extent, j, k)), at.rstd.at(extent, j, k));
}

// use(extent, j, dz, dz * xhat) for every pack of n neighbouring elements, which begins at element j.
template <class T, class C, class F>
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
    each_vector([&](size_t k, auto part, int64_t c, size_t v)
                    HWY_ATTR { u[k] = hn::Mul(load(part, dy + c, v), u[k]); });
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

// Gamma and beta of neighbouring channels, of a tile at most, once an element.
template <class T>
class TileParameters {
  using W = Wide<T>;

 public:
  HWY_INLINE TileParameters(const GroupNormSwishGrad<T>& p, const GradGroup<T>& group)
      : p_(p), gamma_each_(group.gamma_each), beta_each_(group.beta_each), for_elements_(p.shape.inner) {}

  // has_beta: whether beta is asked for.
  template <class Group>
  HWY_INLINE Coefficients<W, Group> operator()(int64_t channel, int64_t channels, bool has_beta, Group mean,
                                               Group rstd) {
    const int64_t inner = p_.shape.inner;
    if (gamma_each_ != nullptr) {
      return coefficients(p_, gamma_each_ + channel * inner, beta_each_ + channel * inner, mean, rstd);
    }
    for_elements_(p_.gamma + channel, channels * inner, gamma_);
    if (has_beta) for_elements_(p_.beta + channel, channels * inner, beta_);
    return coefficients(p_, gamma_, beta_, mean, rstd);
  }

 private:
  static_assert(kSmallTile <= kFlatTile);
  static_assert(kVectorLanes<W> <= kSpreadByTile);  // or more channels would be read than there may be

  const GroupNormSwishGrad<T>& p_;
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

// Whether a long channel of a group is read as it is without loss: neither its sums nor what its results are computed
// from have left the range of float, and no infinity is among them.
template <class T>
HWY_INLINE bool is_tame_group(const GradGroup<T>& group, const Plane<Wide<T>>& of_xhat) {
  const bool fits = std::isnormal(group.plane.tilt) || of_xhat.tilt == 0;
  return fits && std::isfinite(group.plane.level) && is_tame(group.rstd);
}

// Numbers of channels [first, last) once for each of their elements. Up to a vector behind the last one is written
// over: others may spread what follows only if it begins with a vector.
template <class T>
void group_norm_swish_grad_spread(const Wide<T>* from, int64_t inner, int64_t first, int64_t last, Wide<T>* to) {
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
template <class T>
HWY_INLINE void flat_channel_sums(const GroupNormSwishGrad<T>& p, const GradGroup<T>& group, int64_t first,
                                  int64_t last) {
  using W = Wide<T>;
  HWY_ALIGN W products[kFlatTile + kFlatRoom<W>], forgotten[kFlatTile + kFlatRoom<W>];
  const int64_t inner = p.shape.inner, most = tile_channels(p.shape), all = p.shape.group_channels();
  ChannelSums<W> sum_channels(inner);
  TileParameters<T> parameters(p, group);
  const Same<W> mean(group.mean), rstd(group.rstd);
  for (int64_t tile = first; tile < last; ++tile) {
    const int64_t c = tile * most, channels = HWY_MIN(most, all - c), offset = c * inner;
    W* dz = group.dz ? group.dz + tile * tile_pitch<W>(p.shape) : forgotten;
    const auto at = parameters(group.channel + c, channels, true, mean, rstd);
    const int64_t next = offset + channels * inner;
    const T* next_x = tile + 1 < last ? group.x + next : group.next_x;
    const T* next_dy = tile + 1 < last ? group.dy + next : group.next_dy;
    flat_slopes(group.dy + offset, group.x + offset, at, channels * inner,
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

template <class T>
HWY_INLINE void flat_channel_apply(const GroupNormSwishGrad<T>& p, const GradGroup<T>& group, int64_t first,
                                   int64_t last) {
  using W = Wide<T>;
  HWY_ALIGN W again[kFlatTile + kFlatRoom<W>];
  const int64_t inner = p.shape.inner, most = tile_channels(p.shape), all = p.shape.group_channels();
  TileParameters<T> parameters(p, group);
  const Same<W> c1(group.plane.level), c2(group.plane.tilt), mean(group.mean), rstd(group.rstd);
  for (int64_t tile = first; tile < last; ++tile) {
    const int64_t c = tile * most, channels = HWY_MIN(most, all - c), n = channels * inner, offset = c * inner;
    const auto at = parameters(group.channel + c, channels, group.dz == nullptr, mean, rstd);
    const W* dz = group.dz ? group.dz + tile * tile_pitch<W>(p.shape) : again;
    if (!group.dz) {
      flat_slopes(group.dy + offset, group.x + offset, at, n,
                  [&](auto, int64_t j, const Pack<W>& at_dz, const Pack<W>&)
                      DESCEND_INLINED { store(Full(), at_dz, again + j); });
    }
    flat_apply(group.x + offset, dz, at, c1, c2, n, group.dx + offset);
  }
}

// ---- What both have in common.

// Those of a wild group are functions of their own: beside them the usual ways would be slower to begin.
template <class T>
HWY_NOINLINE void wild_sums(const GroupNormSwishGrad<T>& p, const GradGroup<T>& group, int64_t first, int64_t last) {
  group.dz ? channel_sums<true, true>(p, group, first, last, NoResults())
           : channel_sums<true, false>(p, group, first, last, NoResults());
}

template <class T>
HWY_NOINLINE void wild_apply(const GroupNormSwishGrad<T>& p, const GradGroup<T>& group, int64_t first, int64_t last) {
  group.dz ? channel_apply<true, true, false>(p, group, first, last)
           : channel_apply<true, false, false>(p, group, first, last);
}

template <class T>
void group_norm_swish_grad_sums(const GroupNormSwishGrad<T>& p, const GradGroup<T>& group, int64_t first,
                                int64_t last) {
  constexpr bool kUsual = kUsuallyNormalised<T>;
  if (has_short_channels(p.shape)) return flat_channel_sums(p, group, first, last);
  if constexpr (!kUsual) {
    if (group.wild) return wild_sums(p, group, first, last);
  }
  group.dz ? channel_sums<kUsual, true>(p, group, first, last, NoResults())
           : channel_sums<kUsual, false>(p, group, first, last, NoResults());
}

// The sums of a group, and in step with them the results of the one above.
template <class T>
void group_norm_swish_grad_in_step(const GroupNormSwishGrad<T>& p, const GradGroup<T>& group,
                                   const GradGroup<T>& above) {
  constexpr bool kUsual = kUsuallyNormalised<T>;
  const int64_t entries = grad_entries(p.shape);
  (kHasVectors && above.stream)
      ? channel_sums<kUsual, true>(p, group, 0, entries, Results<kUsual, true, kHasVectors, T>(p, above))
      : channel_sums<kUsual, true>(p, group, 0, entries, Results<kUsual, true, false, T>(p, above));
}

template <class T>
void group_norm_swish_grad_apply(const GroupNormSwishGrad<T>& p, const GradGroup<T>& group, int64_t first,
                                 int64_t last) {
  constexpr bool kUsual = kUsuallyNormalised<T>;
  if (has_short_channels(p.shape)) return flat_channel_apply(p, group, first, last);
  if constexpr (!kUsual) {
    if (group.wild) return wild_apply(p, group, first, last);
  }
  if (kHasVectors && group.stream) {
    group.dz ? channel_apply<kUsual, true, kHasVectors>(p, group, first, last)
             : channel_apply<kUsual, false, kHasVectors>(p, group, first, last);
    flush_streams();
  } else {
    group.dz ? channel_apply<kUsual, true, false>(p, group, first, last)
             : channel_apply<kUsual, false, false>(p, group, first, last);
  }
}

// From entries to the two means, and to sums of long channels, which go to the slots. Returns false where the group
// turns out to be wild: its sums are to be done again.
template <class T>
bool group_norm_swish_grad_means(const GroupNormSwishGrad<T>& p, GradGroup<T>& group) {
  using W = Wide<T>;
  const int64_t channels = p.shape.group_channels(), inner = p.shape.inner;
  const double elements = static_cast<double>(channels * inner);
  if (has_short_channels(p.shape)) {
    double dz = 0, dzx = 0;
    for (int64_t tile = 0; tile < grad_entries(p.shape); ++tile) {
      dz += group.dz_sums[tile];
      dzx += group.dzx_sums[tile];
    }
    group.plane = {static_cast<W>(dzx / elements), static_cast<W>(dz / elements)};
    return true;
  }
  const int64_t blocks = blocks_in(inner);
  for (double* sums : {group.dz_sums, group.dzx_sums}) {
    for (int64_t c = 0; blocks > 1 && c < channels; ++c) {
      double sum = sums[c * blocks];
      for (int64_t b = 1; b < blocks; ++b) sum += sums[c * blocks + b];
      sums[c] = sum;
    }
  }
  const W* gamma = p.gamma + group.channel;
  const Plane<W> of_xhat{rounded<W>(weighted_sum(gamma, group.dzx_sums, channels) / elements),
                         rounded<W>(weighted_sum(gamma, group.dz_sums, channels) / elements)};
  group.plane = of_xhat;
  if constexpr (!kUsuallyNormalised<T>) {
    if (!group.wild) {
      group.plane = plane_in(frame_of<false>(group), of_xhat);
      group.wild = !is_tame_group(group, of_xhat);
      if (group.wild) return false;
    }
  }
  leave_sums(group.dz_sums, channels, group.dbeta, group.fresh, false);
  leave_sums(group.dzx_sums, channels, group.dgamma, group.fresh, false);
  return true;
}

// ---- What a thread does with groups of its own.

// Groups [first, last) of a sample where groups are small: as many at a time as fit a tile.
template <class T>
class SmallGradients {
  using W = Wide<T>;

 public:
  HWY_INLINE SmallGradients(const GroupNormSwishGrad<T>& p, const GradGroup<T>& own)
      : p_(p),
        elements_(p.shape.group_elements()),
        parameters_(p, own),
        for_elements_(elements_),
        sum_channels_(p.shape.inner) {}

  HWY_INLINE void operator()(int64_t n, int64_t first, int64_t last, int64_t slot, bool fresh) {
    const int64_t tile = kSmallTile / elements_, group_channels = p_.shape.group_channels();
    for (int64_t g = first; g < last; g += tile) {
      const int64_t groups = HWY_MIN(tile, last - g), all = groups * elements_, channels = groups * group_channels;
      const int64_t offset = g * elements_, channel = g * group_channels;
      spread(p_.mean + n * p_.shape.groups + g, groups, mean_);
      spread(p_.rstd + n * p_.shape.groups + g, groups, rstd_);
      const auto at = parameters_(channel, channels, true, Each<W>(mean_), Each<W>(rstd_));
      const T* x = p_.x.row(n) + offset;
      flat_slopes(p_.dy.row(n) + offset, x, at, all,
                  [&](auto, int64_t j, const Pack<W>& at_dz, const Pack<W>& at_dzx) DESCEND_INLINED {
                    store(Full(), at_dz, dz_ + j);
                    store(Full(), at_dzx, dzx_ + j);
                  });
      const auto add_up = [&](const W* values, const ColumnSums<T>& to, W* means) HWY_ATTR {
        const W* sums = sum_channels_(values, channels);
        leave_sums(sums, channels, to.from(slot * p_.shape.channels + channel), fresh, false);
        weigh(p_.gamma + channel, sums, channels);
        sum_tile(weighted_, groups, group_channels, sums_);
        const Tag<double> d;
        for_each_row_vector(groups, [&](int64_t i) HWY_ATTR {
          store_rounded(d, hn::Div(hn::Load(d, sums_ + i), splat(static_cast<double>(elements_))), of_group_ + i);
        });
        for_elements_(of_group_, all, means);
      };
      add_up(dz_, p_.dbeta, c1_);
      add_up(dzx_, p_.dgamma, c2_);
      if (elements_ == 1) {  // dz * gamma is its own mean: what is left of dx is 0 where xhat is
        for (int64_t j = 0; j < all; ++j) {
          dz_[j] -= dz_[j];  // of an infinity, NaN
          c1_[j] = 0;
        }
      }
      flat_apply(x, dz_, at, Each<W>(c1_), Each<W>(c2_), all, p_.dx.row(n) + offset);
    }
  }

 private:
  static constexpr int64_t kTile = kSmallTile + kFlatRoom<W>;

  // A number of each group for all its elements.
  HWY_INLINE void spread(const W* from, int64_t groups, W* to) {
    widen_packs(from, groups, of_group_);
    for_elements_(of_group_, groups * elements_, to);
  }

  // Sums of channels times their gamma, in double, where nothing overflows.
  HWY_INLINE void weigh(const W* gamma, const W* sums, int64_t channels) {
    const Tag<double> d;
    for_each_pack<W>(0, channels, [&](auto extent, int64_t c) HWY_ATTR {
      constexpr size_t kCount = kPackLanes<W> / kVectorLanes<double>;
      Vector<double> weight[kCount], sum[kCount];
      to_double<W, kPackVectors<W>>(load_pack(extent, gamma + c).v, weight);
      to_double<W, kPackVectors<W>>(load_pack(extent, sums + c).v, sum);
      each<kCount>([&](size_t k) DESCEND_INLINED {
        hn::Store(hn::Mul(weight[k], sum[k]), d, weighted_ + c + static_cast<int64_t>(k * kVectorLanes<double>));
      });
    });
  }

  const GroupNormSwishGrad<T>& p_;
  const int64_t elements_;
  TileParameters<T> parameters_;
  const Repeat<W> for_elements_;
  ChannelSums<W> sum_channels_;
  HWY_ALIGN W mean_[kTile];
  HWY_ALIGN W rstd_[kTile];
  HWY_ALIGN W dz_[kTile];
  HWY_ALIGN W dzx_[kTile];
  HWY_ALIGN W c1_[kTile];
  HWY_ALIGN W c2_[kTile];
  HWY_ALIGN double weighted_[kTile];
  HWY_ALIGN double sums_[kTile];
  HWY_ALIGN W of_group_[kTile];
};

// Chunks [first, last). `own` lacks what differs from group to group.
template <class T>
void group_norm_swish_grad_chunks(const GroupNormSwishGrad<T>& p, const GroupCut& cut, int64_t first, int64_t last,
                                  GradGroup<T> own) {
  const GroupShape& shape = p.shape;
  const int64_t elements = shape.group_elements(), entries = grad_entries(shape);
  if (has_short_channels(shape) && elements < kSmallGradElements) {
    SmallGradients<T> small_groups(p, own);
    for (int64_t i = first; i < last; ++i) {
      const GroupChunk chunk = cut.chunk(shape, i);
      for (int64_t n = chunk.first_sample; n < chunk.last_sample; ++n) {
        small_groups(n, chunk.first_group, chunk.last_group, chunk.slot, n == chunk.first_sample);
      }
    }
    return;
  }
  GradGroup<T> above{};  // the group whose results are yet to be made
  for (int64_t i = first; i < last; ++i) {
    const GroupChunk chunk = cut.chunk(shape, i);
    for (int64_t n = chunk.first_sample; n < chunk.last_sample; ++n) {
      for (int64_t g = chunk.first_group; g < chunk.last_group; ++g) {
        own.place(p, n, g, chunk.slot, n == chunk.first_sample);
        const bool same_sample = g + 1 < chunk.last_group;
        own.set_next(p, same_sample ? n : std::min(n + 1, chunk.last_sample - 1),
                     same_sample ? g + 1 : chunk.first_group);
        do {
          if (above.in_step) {
            group_norm_swish_grad_in_step(p, own, above);
            above.in_step = false;
          } else {
            group_norm_swish_grad_sums(p, own, 0, entries);
          }
        } while (!group_norm_swish_grad_means(p, own));
        if (own.in_step && !own.wild) {
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
    scratch.sums = padded(static_cast<size_t>(whole_packs<W>(grad_entries(shape))) * sizeof(double));
    if (elements <= kKeptElements) {
      const int64_t kept = has_short_channels(shape) ? grad_entries(shape) * tile_pitch<W>(shape)
                                                     : shape.group_channels() * whole_packs<W>(shape.inner);
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

// Bytes that channels begin at multiples of where dx is stored past the caches. The lines that two channels share are
// stored in parts: for short channels, or as long as the last-level cache has room for dx, that takes longer than to
// store as usual.
template <class T>
int stream_unit(const GroupShape& shape) {
  constexpr int64_t kLong = 512;  // elements
  return shape.inner >= kLong && exceeds_last_cache(bytes_moved<T>(shape) / 3) ? kStreamUnit<T> : 64;
}

// Whether dx is stored past the caches where it is aligned.
template <class T>
bool may_stream(const GroupShape& shape) {
  const int64_t channel_bytes = shape.inner * static_cast<int64_t>(sizeof(T));
  return !has_short_channels(shape) && channel_bytes % stream_unit<T>(shape) == 0 &&
         streams_results({bytes_moved<T>(shape), bytes_moved<T>(shape) / 3});
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
  const int64_t chunks = split_groups(shape) ? 1 : cut_groups(shape).chunks();
  return Scratch::of<Wide<T>>(shape, chunks);
}

template <class T>
void spread_channels(const Wide<T>* from, const GroupShape& shape, Wide<T>* to) {
  static const auto run = DESCEND_CHOOSE_FOR(T, group_norm_swish_grad_spread<T>);
  constexpr int64_t kChannels = 4096;  // many vectors
  parallel_for(ceil_div(shape.channels, kChannels), shape.channels * shape.inner * 4, [&](int64_t chunk) {
    run(from, shape.inner, chunk * kChannels, std::min((chunk + 1) * kChannels, shape.channels), to);
  });
}

template <class T>
void by_groups(const GroupNormSwishGrad<T>& p, const Scratch& scratch, void* memory, const GradGroup<T>& each) {
  static const auto run = DESCEND_CHOOSE_FOR(T, group_norm_swish_grad_chunks<T>);
  const GroupCut cut = cut_groups(p.shape);
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
  static const auto sums = DESCEND_CHOOSE_FOR(T, group_norm_swish_grad_sums<T>);
  static const auto means = DESCEND_CHOOSE_FOR(T, group_norm_swish_grad_means<T>);
  static const auto apply = DESCEND_CHOOSE_FOR(T, group_norm_swish_grad_apply<T>);
  const int64_t entries = grad_entries(p.shape);
  const int64_t entry_elements = has_short_channels(p.shape) ? kFlatTile : std::min(p.shape.inner, kBlock);
  const int64_t piece = std::max<int64_t>(kPieceElements / entry_elements, 1);
  const int64_t pieces = ceil_div(entries, piece);
  const int64_t work = group_work(p.shape, p.shape.group_elements());
  scratch.lay_out(memory, group);
  for (int64_t n = 0; n < p.shape.samples; ++n) {
    for (int64_t g = 0; g < p.shape.groups; ++g) {
      group.place(p, n, g, 0, n == 0);
      group.set_next(p, n, g);
      const auto end = [&](int64_t i) { return std::min((i + 1) * piece, entries); };
      for (bool known = false; !known;) {
        parallel_for(pieces, work, [&](int64_t i) { sums(p, group, i * piece, end(i)); });
        const FixedFpEnvironment environment;
        known = means(p, group);
      }
      parallel_for(pieces, work, [&](int64_t i) { apply(p, group, i * piece, end(i)); });
    }
  }
}

}  // namespace

template <class T>
int64_t group_norm_swish_grad_slots(const GroupShape& shape) {
  if (shape.elements() == 0 || split_groups(shape)) return 1;
  return cut_groups(shape).sample_chunks;
}

template <class T>
size_t group_norm_swish_grad_scratch(const GroupShape& shape) {
  return shape.elements() == 0 ? 0 : scratch_of<T>(shape).bytes();
}

template <class T>
void group_norm_swish_grad(const GroupNormSwishGrad<T>& p, void* memory) {
  const GroupShape& shape = p.shape;
  if (shape.elements() == 0) {
    p.dgamma.clear(shape.channels);
    p.dbeta.clear(shape.channels);
    return;
  }
  const Scratch scratch = scratch_of<T>(shape);
  const bool split = split_groups(shape);
  const auto threads = [&] {
    if (split) return num_threads();
    return detail::useful_threads(cut_groups(shape).chunks(), group_work(shape, shape.elements()));
  };
  char* rest = static_cast<char*>(memory) + 2 * scratch.each;
  GradGroup<T> each{};
  each.gamma_each = p.gamma;
  each.beta_each = p.beta;
  if (scratch.each > 0 && shape.inner >= kSpreadByTile && threads() > 1) {
    each.gamma_each = each.beta_each = nullptr;
  } else if (scratch.each > 0) {
    auto* gamma = static_cast<Wide<T>*>(memory);
    auto* beta = reinterpret_cast<Wide<T>*>(static_cast<char*>(memory) + scratch.each);
    spread_channels<T>(p.gamma, shape, gamma);
    spread_channels<T>(p.beta, shape, beta);
    each.gamma_each = gamma;
    each.beta_each = beta;
  }
  each.stream = may_stream<T>(shape) && are_aligned(p.dx, stream_unit<T>(shape));
  each.in_step = work_in_step<T>(shape, each.stream);
  each.ask = exceeds_kept(bytes_moved<T>(shape));
  split ? by_pieces(p, scratch, rest, each) : by_groups(p, scratch, rest, each);
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
