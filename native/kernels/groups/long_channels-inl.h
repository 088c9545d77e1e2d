// The gradient of group norm where channels are long enough to be worked on one by one: sums and results.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/groups/group.h"
#include "kernels/rows/prefetch-inl.h"
#include "kernels/schedule/stores.h"
#include "kernels/simd/doubles-inl.h"
#include "kernels/simd/fold_rows-inl.h"
#include "kernels/simd/pack-inl.h"
#include "kernels/simd/swish-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

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

  HWY_INLINE void set_lines(const GroupNormGrad<T, true>& p, const Frame& frame, int64_t channel, int64_t n) {
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

  HWY_INLINE void set_weights(const auto& p, const Frame& frame, int64_t channel, int64_t n) {
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

// x and dz of neighbouring packs; dz is dy without swish, which has no line. Lanes beyond the row have dy = 0 and so
// dz = 0.
template <bool kSwish, bool kNormalised, class T, size_t kPacks>
struct Slopes {
  using W = Wide<T>;
  Pack<W> x[kPacks], dz[kPacks];

  template <class Extent>
  HWY_INLINE Slopes(Extent extent, const T* from_x, const T* from_dy, const Vector<W>& mean, const Vector<W>& rstd,
                    const Line<W>& line) {
    constexpr size_t kN = kPackVectors<W>, kAll = kPacks * kN;
    each<kPacks>([&](size_t i) DESCEND_INLINED {
      x[i] = elements<kNormalised>(part_of<W>(extent, i), from_x + i * kPackLanes<W>, mean, rstd);
    });
    if constexpr (kSwish) {
      Vector<W> slope[kAll];
      each<kAll>([&](size_t k)
                     DESCEND_INLINED { slope[k] = hn::MulAdd(x[k / kN].v[k % kN], line.steepness, line.level); });
      swish_slopes<kBriefly<T>, W, kAll>(slope, slope, [&](size_t k) DESCEND_INLINED {
        return hn::And(hn::IsFinite(x[k / kN].v[k % kN]), hn::IsFinite(line.level));
      });
      each<kPacks>([&](size_t i) DESCEND_INLINED {
        dz[i] = load_pack(part_of<W>(extent, i), from_dy + i * kPackLanes<W>);
        each<kN>([&](size_t k) DESCEND_INLINED { dz[i].v[k] = hn::Mul(dz[i].v[k], slope[i * kN + k]); });
      });
    } else {
      each<kPacks>([&](size_t i)
                       DESCEND_INLINED { dz[i] = load_pack(part_of<W>(extent, i), from_dy + i * kPackLanes<W>); });
    }
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
template <bool kNormalised, bool kKept, class P>
struct EntryResults {
  using T = typename P::Type;
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

  HWY_INLINE void prefetch(int64_t j, int64_t ahead) const { prefetch_pack<prefetch_near>(dx + j, ahead); }

  // streams: whether results go past the caches.
  template <class Extent, size_t kPacks>
  HWY_INLINE void make(Extent extent, Packs<kPacks>, int64_t j, bool streams) const {
    if constexpr (kKept) {
      each<kPacks>([&](size_t i) DESCEND_INLINED {
        const int64_t at = j + i * kPackLanes<W>;
        const auto part = part_of<W>(extent, i);
        finish(part, elements<kNormalised>(part, x + at, mean, rstd), load_pack(Full(), dz + at), at, streams);
      });
    } else {
      const Slopes<P::kSwish, kNormalised, T, kPacks> slopes(extent, x + j, dy + j, mean, rstd, line);
      each<kPacks>([&](size_t i) DESCEND_INLINED {
        finish(part_of<W>(extent, i), slopes.x[i], slopes.dz[i], j + i * kPackLanes<W>, streams);
      });
    }
  }

 private:
  template <class Extent>
  HWY_INLINE void finish(Extent extent, const Pack<W>& at_x, const Pack<W>& at_dz, int64_t j, bool streams) const {
    Pack<W> result;
    each<kN>([&](size_t k) DESCEND_INLINED {
      const auto rest = hn::MulAdd(at_x.v[k], x_weight, base);
      result.v[k] = hn::MulSub(at_dz.v[k], dz_weight, rest);
      if constexpr (kNormalised) result.v[k] = hn::Mul(rstd, result.v[k]);
    });
    if (streams) {
      store<kHasVectors, Nan::kOfBfloat16, kInQuarters<T>>(extent, result, dx + j);
    } else {
      store<false, Nan::kOfBfloat16, kInQuarters<T>>(extent, result, dx + j);
    }
  }
};

// The results of a group whose means are known.
template <bool kNormalised, bool kKept, class P>
class Results {
  using T = typename P::Type;
  using W = Wide<T>;
  static constexpr bool kHasLines = P::kSwish && !kKept;

 public:
  HWY_INLINE Results(const P& p, const GradGroup<T>& group)
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
  HWY_INLINE EntryResults<kNormalised, kKept, P> entries(int64_t first, int64_t n) {
    const int64_t channel = entries_.channel(first), offset = channel * entries_.inner;
    if constexpr (kHasLines) lines_.set_lines(p_, frame_, group_.channel + channel, n);
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

  HWY_INLINE bool streams() const { return group_.stream; }

  HWY_INLINE void set(int64_t i, EntryResults<kNormalised, kKept, P>& due) const {
    if constexpr (kHasLines) due.line = lines_.line(i);
    due.dz_weight = splat(lines_.weight[i]);
  }

 private:
  const P& p_;
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
  HWY_INLINE bool streams() const { return false; }
  HWY_INLINE void set(int64_t, NoResults&) const {}
  HWY_INLINE void move_on(const auto&) {}
  template <class Extent, class Count>
  HWY_INLINE void make(Extent, Count, int64_t, bool) const {}
};

// Sums of blocks [first, last) of the group's channels, all channels' blocks counted through. In step with them another
// group's results are made: sums leave memory time that results lack.
template <bool kNormalised, class P, class T, class R>
HWY_INLINE void channel_sums(const P& p, const GradGroup<T>& group, int64_t first, int64_t last, R results) {
  using W = Wide<T>;
  constexpr size_t kN = kPackVectors<W>;
  const Entries<T> entries(p.shape);
  const int64_t inner = entries.inner;
  const Frame frame = frame_of<kNormalised>(group);
  const Vector<W> mean = splat(group.mean), rstd = splat(group.rstd);
  const bool streams = results.streams();
  Lines<T> lines;
  Vector<W> dz_lanes[Lines<T>::kMost], dzx_lanes[Lines<T>::kMost];
  for (int64_t next = first; next < last; next += entries.abreast) {
    const int64_t n = HWY_MIN(entries.abreast, last - next);
    const int64_t channel = entries.channel(next), begin = entries.begin(next), end = entries.end(next);
    if constexpr (P::kSwish) lines.set_lines(p, frame, group.channel + channel, n);
    auto due = results.entries(next, n);
    const T* dy = group.dy + channel * inner;
    const T* x = group.x + channel * inner;
    const T* dx = group.dx + channel * inner;
    W* dz = P::kSwish && group.dz ? group.dz + channel * entries.pitch() : nullptr;
    for (int64_t e = 0; e < n; ++e) {
      const Line<W> line = P::kSwish ? lines.line(e) : Line<W>();
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
          } else if (!streams) {
            due.prefetch(at, kAhead);
          }
        }
        due.make(extent, packs, j, streams);  // first: dz may be the other group's as yet
        const Slopes<P::kSwish, kNormalised, T, kPacks> slopes(extent, x + j, dy + j, mean, rstd, line);
        each<kPacks>([&](size_t i) DESCEND_INLINED {
          if (dz != nullptr) store(Full(), slopes.dz[i], dz + j + i * kPackLanes<W>);
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
      if (dz != nullptr) dz += entries.pitch();
      due.move_on(entries);
    }
    fold_sums<kNormalised, T>(dz_lanes, dzx_lanes, n, frame, group.dz_sums + next, group.dzx_sums + next);
  }
}

template <bool kNormalised, bool kKept, class P, class T>
HWY_INLINE void apply_entries(const P& p, const GradGroup<T>& group, int64_t first, int64_t last) {
  const Entries<T> entries(p.shape);
  Results<kNormalised, kKept, P> results(p, group);
  const bool streams = results.streams();
  for (int64_t next = first; next < last; next += entries.abreast) {
    const int64_t n = HWY_MIN(entries.abreast, last - next);
    auto due = results.entries(next, n);
    for (int64_t e = 0; e < n; ++e) {
      results.set(e, due);
      over_packs<Wide<T>>(entries.begin(next), entries.end(next),
                          [&](auto extent, auto packs, int64_t j)
                              DESCEND_INLINED { due.make(extent, packs, j, streams); });
      due.move_on(entries);
    }
  }
}

template <bool kNormalised, class P, class T>
HWY_INLINE void channel_apply(const P& p, const GradGroup<T>& group, int64_t first, int64_t last) {
  if (P::kSwish && group.dz != nullptr) return apply_entries<kNormalised, P::kSwish>(p, group, first, last);
  apply_entries<kNormalised, false>(p, group, first, last);
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
