// Rows whose parameters change every few columns, as those of group norm: a row is a group, a stretch of it a channel.
//
// Sums and terms are those of any rows. The results are made strip by strip. Of a long stretch, which is a strip, all
// elements have the same numbers. Short ones share a strip, and their numbers are spread over the elements first; so do
// short rows.
//
// A program that goes this way has one input, a pivot and no sums of columns. It has also:
//   Swish<T>                          what the results' last step needs; made of the scalars of the call
//   kMapped                           the first of the terms that map() reads, and behind the last
//   activate(swish, v, are_finite)    that step, of several vectors; are_finite(k): whether v[k]'s parameters are
#pragma once

#include "kernels/rows/prefetch-inl.h"
#include "kernels/rows/shared-inl.h"
#include "kernels/simd/doubles-inl.h"
#include "kernels/simd/swish-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

inline constexpr int64_t kLongStretch = 48;  // columns; of shorter ones too many lanes would be empty
inline constexpr int64_t kStrip = 512;       // elements of a strip of what is short

// How a thread makes the results of such rows. Strips are functions of their own: inlined, the loops would be compiled
// eight times instead of twice, and be no faster.
template <class P, class T>
class Strips {
  using W = Wide<T>;
  static constexpr int kTerms = P::kMapped[1] - P::kMapped[0], kNumbers = P::kParameters + kTerms;

 public:
  // ahead: how many elements beyond those in work are asked for.
  HWY_INLINE explicit Strips(const RowCall<W>& call, int64_t ahead = 0)
      : p_(call.problem),
        streams_(call.schedule.streams),
        ahead_(ahead),
        swish_(call.problem.scalars),
        for_elements_(p_.stretch),
        for_rows_(p_.columns) {}

  // Columns [begin, begin + n) of row r of a tile, the problem's row `row`; the tile begins with column `begin`.
  HWY_INLINE void map_row(const Tile<W>& tile, int64_t r, int64_t row, int64_t begin, int64_t n, T* out) {
    const T* const in = reinterpret_cast<const T*>(tile.in[0].row(r));
    each<kTerms>([&](size_t i) DESCEND_INLINED { values_[P::kParameters + i] = term(tile, i)[r]; });
    if (p_.stretch < kLongStretch) {
      each<kTerms>([&](size_t i) DESCEND_INLINED {
        W* const to = spread_[P::kParameters + i];
        for (int64_t j = 0; j < HWY_MIN(n, kStrip); j += kVectorLanes<W>) {
          hn::Store(splat(values_[P::kParameters + i]), Tag<W>(), to + j);
        }
      });
      return map_short(in, p_.stretch_of(row, begin), begin % p_.stretch, n, out);
    }
    const int64_t first = p_.stretch_of(row, 0);
    for (int64_t c = begin, end; c < begin + n; c = end) {
      end = HWY_MIN((c / p_.stretch + 1) * p_.stretch, begin + n);
      each<P::kParameters>([&](size_t i) DESCEND_INLINED {
        const W value = p_.parameters[i].wide[first + c / p_.stretch];
        const bool is_any_nan = sizeof(T) == 2 && std::isnan(value);  // see Nan
        values_[i] = is_any_nan ? std::numeric_limits<W>::quiet_NaN() : value;
      });
      map_strip<false>(in + (c - begin), 0, end - c, out + (c - begin));
    }
  }

  // `rows` rows from row r of a tile on that lie one after the other, no more than a strip has room for.
  HWY_INLINE void map_rows(const Tile<W>& tile, int64_t r, int64_t row, int64_t rows, T* out) {
    const int64_t n = rows * p_.columns;
    each<kTerms>([&](size_t i) DESCEND_INLINED { for_rows_(term(tile, i) + r, n, spread_[P::kParameters + i]); });
    map_short(reinterpret_cast<const T*>(tile.in[0].row(r)), p_.stretch_of(row, 0), 0, n, out);
  }

 private:
  // With what begins before a strip, and the packs that end behind it.
  using Room = W[kStrip + kLongStretch + 3 * kPackLanes<W>];

  static HWY_INLINE const W* term(const Tile<W>& tile, size_t i) {
    return tile.terms[P::kMapped[0] + static_cast<int>(i)];
  }

  // n elements of short stretches, from `at` elements behind the beginning of one on. Their terms are spread.
  HWY_NOINLINE void map_short(const T* in, int64_t stretch, int64_t at, int64_t n, T* out) {
    for (int64_t done = 0, count; done < n; done += count) {
      count = HWY_MIN(n - done, kStrip);
      each<P::kParameters>([&](size_t i) DESCEND_INLINED {
        HWY_ALIGN Room room;  // Repeat reads more than it takes
        W* const numbers = p_.stretch == 1 ? spread_[i] : room;
        for_each_pack<W>(0, ceil_div(at + count, p_.stretch), [&](auto extent, int64_t c) HWY_ATTR {
          Pack<W> pack = load_pack(extent, p_.parameters[i].wide + stretch + c);
          if constexpr (sizeof(T) == 2) {
            for (auto& v : pack.v) v = shorten_nan(v);
          }
          store(Full(), pack, numbers + c);
        });
        if (p_.stretch > 1) for_elements_(numbers, at + count, spread_[i]);
      });
      for (W* const numbers : spread_) {  // what lies behind the last element is computed, too
        for (int64_t c = 0; c < 2 * int64_t{kPackLanes<W>}; c += kVectorLanes<W>) {
          hn::StoreU(hn::Zero(Tag<W>()), Tag<W>(), numbers + at + count + c);
        }
      }
      map_strip<true>(in + done, at, count, out + done);
      at += count;
      stretch += at / p_.stretch;
      at %= p_.stretch;
    }
  }

  // n elements. kSpread: each has its own numbers, its parameters from place `at` on; or all have the same.
  template <bool kSpread>
  HWY_NOINLINE void map_strip(const T* in, int64_t at, int64_t n, T* out) const {
    // Copies: the compiler must think that a vector that is stored may change what the strips have.
    const auto swish = swish_;
    const bool streams = streams_;
    const int64_t ahead = ahead_;
    Vector<W> same[kNumbers];
    each<kNumbers>([&](size_t i) DESCEND_INLINED { same[i] = splat(values_[i]); });
    over_packs<W>(0, n, [&](auto extent, auto packs, int64_t j) DESCEND_INLINED {
      constexpr size_t kCount = kPackVectors<W>, kAll = decltype(packs)::value * kCount;
      constexpr size_t kN = HWY_MIN(kAll, kAbreastVectors);
      const auto number = [&](size_t i, size_t k) DESCEND_INLINED {
        if constexpr (!kSpread) return same[i];
        return hn::LoadU(Tag<W>(), spread_[i] + (i < P::kParameters ? at : 0) + j + k * kVectorLanes<W>);
      };
      Vector<W> result[kAll];
      DESCEND_UNROLL
      for (size_t first = 0; first < kAll; first += kN) {
        each<kN>([&](size_t k) DESCEND_INLINED {
          const size_t pack = (first + k) / kCount;
          const Vector<W> v = load(part_of<W>(extent, pack), in + j + pack * kPackLanes<W>, (first + k) % kCount);
          Vector<W> beside[P::kParameters], terms[P::kTerms];
          each<P::kParameters>([&](size_t i) DESCEND_INLINED { beside[i] = number(i, first + k); });
          each<kTerms>([&](size_t i)
                           DESCEND_INLINED { terms[P::kMapped[0] + i] = number(P::kParameters + i, first + k); });
          result[first + k] = P::map(&v, beside, terms, &result[0]);
        });
        P::template activate<kN>(swish, result + first, [&](size_t k) DESCEND_INLINED {
          auto are = hn::IsFinite(number(0, first + k));
          each<P::kParameters - 1>([&](size_t i)
                                       DESCEND_INLINED { are = hn::And(are, hn::IsFinite(number(i + 1, first + k))); });
          return are;
        });
      }
      DESCEND_UNROLL
      for (size_t i = 0; i < decltype(packs)::value; ++i) {
        T* const to = out + j + i * kPackLanes<W>;
        if (ahead != 0) prefetch_pack<prefetch_near>(in + j + i * kPackLanes<W>, ahead);
        DESCEND_UNROLL
        for (size_t pair = 0; pair < kPackPairs<W>; ++pair) {
          const Vector<W>* const v = result + i * kCount;
          store_results<P>(part_of<W>(extent, i), streams, v[2 * pair], v[2 * pair + 1], to, pair);
        }
      }
    });
  }

  const RowProblem<W>& p_;
  const bool streams_;
  const int64_t ahead_;
  const typename P::template Swish<T> swish_;
  const Repeat<W> for_elements_, for_rows_;
  W values_[kNumbers];  // parameters, then terms
  HWY_ALIGN Room spread_[kNumbers];
};

// The pivots and sums of rows of at most four columns that lie one after the other: a lane has a row.
template <class P, class T, class W = Wide<T>>
HWY_NOINLINE void sum_narrow_rows(Tile<W>& tile) {
  const Tag<W> d;
  HWY_ALIGN W values[kMostTileRows * kNarrowColumns + 4 * kPackLanes<W>];
  widen_packs(reinterpret_cast<const T*>(tile.in[0].data), tile.rows * tile.columns, values);
  with_columns(tile.columns, [&](auto count) HWY_ATTR {
    constexpr size_t kColumns = decltype(count)::value;
    for (int64_t r = 0; r < tile.rows; r += kVectorLanes<W>) {
      Vector<W> v[kColumns], sums[P::kSums], terms[P::kTerms];
      load_columns<kColumns>(d, values + r * static_cast<int64_t>(kColumns), v);
      terms[P::kPivot] = hn::Mul(fold_columns<kColumns>(v, Sum()), splat(W{1} / W{kColumns}));
      hn::Store(terms[P::kPivot], d, tile.terms[0] + r);
      each<P::kSums>([&](size_t i) DESCEND_INLINED { sums[i] = hn::Zero(d); });
      each<kColumns>([&](size_t c)
                         DESCEND_INLINED { P::sum(&v[c], static_cast<const Vector<W>*>(nullptr), terms, sums); });
      each<P::kSums>([&](size_t i) DESCEND_INLINED {
        Vector<double> wide[kVectorLanes<W> / kVectorLanes<double>];
        to_double<W, 1>(&sums[i], wide);
        for (size_t h = 0; h < kVectorLanes<W> / kVectorLanes<double>; ++h) {
          hn::Store(wide[h], Tag<double>(), tile.sums[i] + r + h * kVectorLanes<double>);
        }
      });
    }
  });
}

// Rows [first, last).
template <class P, class T, bool kShort>
HWY_NOINLINE void walk_stretches(const RowCall<Wide<T>>& call, int64_t first, int64_t last) {
  using W = Wide<T>;
  const RowProblem<W>& p = call.problem;
  const RowSchedule& s = call.schedule;
  constexpr int64_t kMostAhead = int64_t{256} << 10;  // bytes: a part of a second-level cache
  const int64_t most = kStrip / p.columns;            // rows of a strip
  const bool asks = s.ahead != 0 && s.tile * p.columns * static_cast<int64_t>(sizeof(T)) <= kMostAhead;
  Strips<P, T> strips(call, asks ? s.tile * p.columns : 0);
  Tile<W> tile;
  if (!kShort && !asks) place_foresight<P, T>(p, s, tile.prefetch);
  for (int64_t row = first; row < last; row += tile.rows) {
    place_tile<P, T>(p, row, HWY_MIN(HWY_MIN(s.tile, last - row), p.period - row % p.period), 0, p.columns, tile);
    const bool is_narrow = kShort && p.columns <= kNarrowColumns;
    if (is_narrow) {
      sum_narrow_rows<P, T>(tile);
    } else {
      find_pivots<P, T>(p, row, tile.rows, tile.terms[0]);
    }
    find_terms<P, T, kShort>(p, row, tile, is_narrow);
    for (int64_t r = 0, rows; r < tile.rows; r += rows) {
      T* const out = reinterpret_cast<T*>(tile.out.row(r));
      const auto is_exact = [&](int64_t i) HWY_ATTR { return (tile.exact >> i & 1) != 0; };
      rows = 1;
      if (is_exact(r)) {
        char* const to[] = {tile.out.row(r)};
        exact_results<W>(call, {row + r, 0, p.columns}, nullptr, to, nullptr);
      } else if (most < 2) {
        strips.map_row(tile, r, row + r, 0, p.columns, out);
      } else {
        while (rows < HWY_MIN(most, tile.rows - r) && !is_exact(r + rows)) ++rows;
        strips.map_rows(tile, r, row + r, rows, out);
      }
    }
  }
  if (s.streams) flush_streams();
}

template <class P, class T, class W = Wide<T>>
void run_stretches(const RowCall<W>& call, int64_t first, int64_t last) {
  call.schedule.is_short ? walk_stretches<P, T, true>(call, first, last)
                         : walk_stretches<P, T, false>(call, first, last);
}

// Rows that threads share: columns [begin, begin + n) of the group's results; and sums of the group below.
template <class P, class T, class W = Wide<T>>
void shared_stretches(const RowCall<W>& call, const SharedRows<W>& shared, int64_t begin, int64_t n) {
  Strips<P, T> strips(call);
  Tile<W> tile;
  for (int64_t r = 0; r < shared.group.rows; ++r) {
    const int64_t row = shared.group.row + r;
    place_tile<P, T>(call.problem, row, 1, begin, n, tile);
    if (shared.exact[r]) {
      double means[kMostMeans];
      for (int k = 0; k < kMostMeans; ++k) means[k] = shared.means[k][r];
      char* const to[] = {tile.out.data};
      exact_results<W>(call, {row, begin, begin + n}, means, to, nullptr);
      continue;
    }
    for (int k = 0; k < kFoundTerms<P>; ++k) tile.terms[k][0] = shared.terms[k][r];
    strips.map_row(tile, 0, row, begin, n, reinterpret_cast<T*>(tile.out.data));
  }
  if (shared.below.rows > 0) block_sums<P, T>(call, shared, begin / kBlockColumns);
  if (call.schedule.streams) flush_streams();
}

template <class P, class T>
RowKernels<Wide<T>> stretch_kernels() {
  return {.counts = counts_of<P, T>(),
          .rows = run_stretches<P, T>,
          .share_parameters = nullptr,
          .find_pivots = shared_pivots<P, T>,
          .block_sums = block_sums<P, T>,
          .find_terms = shared_terms<P, T>,
          .results = shared_stretches<P, T>};
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
