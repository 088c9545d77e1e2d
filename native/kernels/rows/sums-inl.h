// The sums of a tile's rows: of long ones in runs, of short ones several at a time.
#pragma once

#include "kernels/rows/prefetch-inl.h"
#include "kernels/rows/program-inl.h"
#include "kernels/rows/spread-inl.h"
#include "kernels/simd/doubles-inl.h"
#include "kernels/simd/fold_rows-inl.h"
#include "kernels/simd/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

template <class P, class T, int kRows, class Extent, class W = Wide<T>>
HWY_INLINE void sum_pack(Extent extent, const RowSet<P, T, kRows>& set, int64_t c, Pack<W> (&sums)[P::kSums][kRows]) {
  DESCEND_UNROLL
  for (size_t k = 0; k < kPackVectors<W>; ++k) {
    if (!reaches<W>(extent, k)) break;
    Vector<W> beside[kSome<P::kParameters>];
    if constexpr (!kIsForward<P>) {
      DESCEND_UNROLL
      for (int i = 0; i < P::kParameters; ++i) beside[i] = load(extent, set.parameters[i] + c, k);
    }
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) {
      Vector<W> v[P::kInputs], sum[P::kSums];
      DESCEND_UNROLL
      for (int i = 0; i < P::kInputs; ++i) v[i] = load(extent, set.in[r][i] + c, k);
      combine<P>(v, set.terms[r]);
      if constexpr (kHasPivot<P>) v[0] = inside_or<W>(extent, k, v[0], set.terms[r][P::kPivot]);
      DESCEND_UNROLL
      for (int i = 0; i < P::kSums; ++i) sum[i] = sums[i][r].v[k];
      P::sum(v, beside, set.terms[r], sum);
      DESCEND_UNROLL
      for (int i = 0; i < P::kSums; ++i) sums[i][r].v[k] = sum[i];
    }
  }
}

// Prefetches the lines that lie so many bytes beyond the pack at c of these rows.
template <class P, class T, int kRows>
HWY_INLINE void prefetch_set(const RowSet<P, T, kRows>& set, int64_t c, const int64_t* bytes) {
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) {
    DESCEND_UNROLL
    for (int i = 0; i < P::kInputs; ++i) {
      const char* p = reinterpret_cast<const char*>(set.in[r][i] + c) + bytes[i];
      DESCEND_UNROLL
      for (size_t line = 0; line < kPackLanes<Wide<T>> * sizeof(T); line += 64) prefetch_distant(p + line);
    }
  }
}

// What the first pass prefetches. A copy of what the tile says: the compiler must assume that storing a vector changes
// the tile.
template <class P, class T>
struct Foresight {
  int64_t ahead;    // bytes
  int64_t columns;  // below this one, what lies `ahead` is in the same row
  int64_t beyond[P::kInputs];
  bool in_order;

  template <class W>
  HWY_INLINE explicit Foresight(const Tile<W>& tile)
      : ahead(tile.prefetch.inside),
        columns(tile.columns - ahead / static_cast<int64_t>(sizeof(T))),
        in_order(tile.prefetch.in_order) {
    each<P::kInputs>([&](size_t i) DESCEND_INLINED { beyond[i] = tile.prefetch.beyond[i]; });
  }

  // The distance at column c.
  HWY_INLINE void at(int64_t c, int64_t (&bytes)[P::kInputs]) const {
    each<P::kInputs>([&](size_t i) DESCEND_INLINED { bytes[i] = c < columns ? ahead : beyond[i]; });
  }
};

template <class P, int kRows, class W>
HWY_INLINE void zero_sums(Pack<W> (&sums)[P::kSums][kRows]) {
  DESCEND_UNROLL
  for (int i = 0; i < P::kSums; ++i) {
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) sums[i][r] = zero_pack<W>();
  }
}

// Sums of a few rows, run by run. The lanes of a run are added in double; where a block ends, they are folded.
template <class P, class T, int kRows, class W = Wide<T>>
class RunSums {
 public:
  HWY_INLINE explicit RunSums(const Tile<W>& tile, int64_t row) : set_(tile, row, kKnownTerms<P>), foresight_(tile) {
    each<P::kSums>([&](size_t i) DESCEND_INLINED {
      each<kRows>([&](size_t r) DESCEND_INLINED {
        lanes_[i][r] = zero_lanes<W>();
        totals_[i][r] = 0;
      });
    });
  }

  HWY_INLINE void start_run() { zero_sums<P, kRows>(sums_); }

  // Adds columns of a run.
  HWY_INLINE void add(int64_t begin, int64_t end) {
    constexpr int64_t kStep = kPackLanes<W>;
    int64_t c = begin;
    if (foresight_.in_order) await_reads();
    int64_t bytes[P::kInputs];
    foresight_.at(begin, bytes);
    for (; c + kStep <= end; c += kStep) {
      if (foresight_.ahead != 0) prefetch_set<P, T, kRows>(set_, c, bytes);
      sum_pack<P, T, kRows>(Full(), set_, c, sums_);
    }
    if (c < end) sum_pack<P, T, kRows>(Part{static_cast<size_t>(end - c)}, set_, c, sums_);
  }

  // Two whole runs of one row side by side, so that none of their chains waits.
  HWY_INLINE void add_two_runs(int64_t begin) {
    constexpr int64_t kStep = kPackLanes<W>;
    Pack<W> second[P::kSums][kRows];
    zero_sums<P, kRows>(sums_);
    zero_sums<P, kRows>(second);
    int64_t bytes[P::kInputs];
    foresight_.at(begin, bytes);
    if (foresight_.in_order) await_reads();
    for (int64_t c = begin; c < begin + kRunColumns<W>; c += kStep) {
      if (foresight_.ahead != 0) {
        prefetch_set<P, T, kRows>(set_, c, bytes);
        prefetch_set<P, T, kRows>(set_, c + kRunColumns<W>, bytes);
      }
      sum_pack<P, T, kRows>(Full(), set_, c, sums_);
      sum_pack<P, T, kRows>(Full(), set_, c + kRunColumns<W>, second);
    }
    end_run(begin + kRunColumns<W>);
    each<P::kSums>([&](size_t i) DESCEND_INLINED { sums_[i][0] = second[i][0]; });
    end_run(begin + 2 * kRunColumns<W>);
  }

  // A whole run, in turns with also(columns of the run that are done), pack by pack.
  template <class Also>
  HWY_INLINE void add_run(int64_t begin, Also also) {
    int64_t bytes[P::kInputs];
    foresight_.at(begin, bytes);
    zero_sums<P, kRows>(sums_);
    for (int64_t c = 0; c < kRunColumns<W>; c += kPackLanes<W>) {
      if (foresight_.ahead != 0) prefetch_set<P, T, kRows>(set_, begin + c, bytes);
      sum_pack<P, T, kRows>(Full(), set_, begin + c, sums_);
      also(c);
    }
  }
  HWY_INLINE bool in_order() const { return foresight_.in_order; }

  HWY_INLINE void end_run(int64_t end) {
    each<P::kSums>([&](size_t i) DESCEND_INLINED {
      each<kRows>([&](size_t r) DESCEND_INLINED { add_lanes(sums_[i][r], lanes_[i][r]); });
    });
    if (end % kBlockColumns == 0) end_block();
  }

  HWY_INLINE void finish(int64_t end, Tile<W>& tile, int64_t row) {
    if (end % kBlockColumns != 0) end_block();
    each<P::kSums>([&](size_t i) DESCEND_INLINED {
      each<kRows>([&](size_t r) DESCEND_INLINED { tile.sums[i][row + static_cast<int64_t>(r)] = totals_[i][r]; });
    });
  }

 private:
  HWY_INLINE void end_block() {
    each<P::kSums>([&](size_t i) DESCEND_INLINED {
      each<kRows>([&](size_t r) DESCEND_INLINED {
        totals_[i][r] += fold(lanes_[i][r]);
        lanes_[i][r] = zero_lanes<W>();
      });
    });
  }

  const RowSet<P, T, kRows> set_;
  const Foresight<P, T> foresight_;
  Pack<W> sums_[P::kSums][kRows];
  DoubleLanes<W> lanes_[P::kSums][kRows];
  double totals_[P::kSums][kRows];
};

// Rows of several runs.
template <class P, class T, int kRows, class W = Wide<T>>
HWY_NOINLINE void sum_long_rows(Tile<W>& tile, int64_t row) {
  RunSums<P, T, kRows> sums(tile, row);
  int64_t c = 0;
  if constexpr (kRows == 1) {
    for (; c + 2 * kRunColumns<W> <= tile.columns; c += 2 * kRunColumns<W>) sums.add_two_runs(c);
  }
  for (; c < tile.columns; c += kRunColumns<W>) {
    const int64_t end = HWY_MIN(c + kRunColumns<W>, tile.columns);
    sums.start_run();
    sums.add(c, end);
    sums.end_run(end);
  }
  sums.finish(tile.columns, tile, row);
}

// How long short rows are: half a pack or less, a pack, a run, or several of these.
enum class Length { kHalf, kPack, kRun, kRuns };

// The type in which the lanes of a short row are folded: double, unless the row is one run and the program says that
// the type of the arithmetic will do.
template <class P, Length kLength, class W>
using Folded = std::conditional_t<P::kFoldsInDouble || kLength == Length::kRuns, double, W>;

// Whether, while a row of a tile is summed, the like row of a later tile is prefetched. Else all of a later tile is,
// between the two passes. In 16 bits norms of 64 to 513 columns and their gradients took 0.57 to 0.99 of the time so,
// from memory. In float32 they took up to 1.4 of it; why is not known (Zen 5).
template <class T>
inline constexpr bool kPrefetchesInSums = sizeof(T) == 2;

// The sums of a short row, each down to one vector. ahead: the prefetch distance of each input, in bytes;
// null: nothing is prefetched.
template <class P, class T, Length kLength, class F, class W = Wide<T>>
HWY_INLINE void sum_short_row(const RowSet<P, T, 1>& set, int64_t columns, const int64_t* ahead,
                              Vector<F> (&folded)[P::kSums]) {
  constexpr int64_t kStep = kPackLanes<W>;
  DoubleLanes<W> lanes[P::kSums];
  if constexpr (kLength == Length::kRuns) {
    each<P::kSums>([&](size_t i) DESCEND_INLINED { lanes[i] = zero_lanes<W>(); });
  }
  int64_t c = 0;
  do {
    Pack<W> sums[P::kSums][1];
    zero_sums<P, 1>(sums);
    if constexpr (kLength == Length::kRun || kLength == Length::kRuns) {
      const int64_t end = kLength == Length::kRun ? columns : HWY_MIN(c + kRunColumns<W>, columns);
      for (; c + kStep <= end; c += kStep) {
        if (ahead != nullptr) prefetch_set<P, T, 1>(set, c, ahead);
        sum_pack<P, T, 1>(Full(), set, c, sums);
      }
      if (c < end) {
        if (ahead != nullptr) prefetch_set<P, T, 1>(set, c, ahead);
        sum_pack<P, T, 1>(Part{static_cast<size_t>(end - c)}, set, c, sums);
      }
      c = end;
    } else {
      sum_pack<P, T, 1>(Part{static_cast<size_t>(columns)}, set, 0, sums);
    }
    each<P::kSums>([&](size_t i) DESCEND_INLINED {
      if constexpr (kLength == Length::kRuns) {
        add_lanes(sums[i][0], lanes[i]);
      } else if constexpr (std::is_same_v<F, double>) {
        folded[i] = fold_as_double < kLength == Length::kHalf > (sums[i][0]);
      } else {
        folded[i] = fold_to_vector<W>(sums[i][0].v);
      }
    });
  } while (kLength == Length::kRuns && c < columns);
  if constexpr (kLength == Length::kRuns) {
    each<P::kSums>([&](size_t i) DESCEND_INLINED { folded[i] = fold_to_vector<double>(lanes[i].v); });
  }
}

// Short rows: each leaves one vector, and the vectors of several rows are folded together.
template <class P, class T, Length kLength, class W = Wide<T>>
HWY_NOINLINE void sum_short_rows(Tile<W>& tile, int64_t columns) {
  using F = Folded<P, kLength, W>;
  constexpr int64_t kFolded = kFoldRows<F>;
  // With several sums, with longer rows and with double, unrolling gains nothing.
  constexpr bool kUnrolls = HWY_TARGET == HWY_AVX3 && kLength < Length::kRun && P::kSums == 1 && !P::kFoldsInDouble;
  constexpr int64_t kUnrolled = 4;
  RowSet<P, T, 1> set(tile, 0, 0);
  int64_t strides[P::kInputs];
  each<P::kInputs>([&](size_t i) DESCEND_INLINED { strides[i] = tile.in[i].stride; });
  int64_t beyond[P::kInputs];  // a copy, as Foresight's
  each<P::kInputs>([&](size_t i) DESCEND_INLINED { beyond[i] = tile.prefetch.beyond[i]; });
  const int64_t* const ahead = kPrefetchesInSums<T> && tile.prefetch.in_sums ? beyond : nullptr;
  for (int64_t row = 0; row < tile.rows; row += kFolded) {
    Vector<F> folded[P::kSums][kFolded];
    const auto sum_row = [&](int64_t r) DESCEND_INLINED {
      load_terms<P>(tile, row + r, kKnownTerms<P>, set.terms[0]);
      Vector<F> sums[P::kSums];
      sum_short_row<P, T, kLength, F>(set, columns, ahead, sums);
      each<P::kSums>([&](size_t i) DESCEND_INLINED { folded[i][r] = sums[i]; });
      each<P::kInputs>([&](size_t i) DESCEND_INLINED {
        set.in[0][i] = reinterpret_cast<const T*>(reinterpret_cast<const char*>(set.in[0][i]) + strides[i]);
      });
    };
    if (kUnrolls && row + kFolded <= tile.rows) {
      for (int64_t r = 0; r < kFolded; r += kUnrolled) {
        each<kUnrolled>([&](size_t i) DESCEND_INLINED { sum_row(r + static_cast<int64_t>(i)); });
      }
    } else {
      for (int64_t r = 0; r < kFolded; ++r) {
        if (row + r < tile.rows) {
          sum_row(r);
        } else {
          each<P::kSums>([&](size_t i) DESCEND_INLINED { folded[i][r] = hn::Zero(Tag<F>()); });
        }
      }
    }
    each<P::kSums>([&](size_t i) DESCEND_INLINED {
      double* const to = tile.sums[i] + row;
      if constexpr (std::is_same_v<F, double>) {
        fold_rows<double>(folded[i], to);
      } else {
        alignas(64) F sums[kFolded];
        fold_rows<F>(folded[i], sums);
        for_each_row_vector(kFolded,
                            [&](int64_t r) HWY_ATTR { hn::Store(load_as_double(sums + r), Tag<double>(), to + r); });
      }
    });
  }
}

// The sums of a tile's rows. kShort: they are short ones.
template <class P, class T, bool kShort, class W = Wide<T>>
HWY_INLINE void sum_rows(Tile<W>& tile) {
  if constexpr (kShort) {
    if constexpr (P::kFoldsInDouble && std::is_same_v<W, float>) {  // else half a pack is folded as a whole one is
      if (tile.columns <= kLanes<W> / 2) return sum_short_rows<P, T, Length::kHalf>(tile, tile.columns);
    }
    if constexpr (kIsForward<P>) {
      if (tile.columns > kRunColumns<W>) return sum_short_rows<P, T, Length::kRuns>(tile, tile.columns);
    }
    if (tile.columns > kLanes<W>) return sum_short_rows<P, T, Length::kRun>(tile, tile.columns);
    sum_short_rows<P, T, Length::kPack>(tile, tile.columns);
  } else {
    constexpr int kSet = P::kRowsAtOnce;
    int64_t r = 0;
    if constexpr (kSet > 1) {
      for (; r + kSet <= tile.rows; r += kSet) sum_long_rows<P, T, kSet>(tile, r);
    }
    for (; r < tile.rows; ++r) sum_long_rows<P, T, 1>(tile, r);
  }
}

// ---- Terms.

// The pivots of rows [row, row + rows): the mean of each one's first columns.
template <class P, class T, class W = Wide<T>>
HWY_NOINLINE void find_pivots(const RowProblem<W>& p, int64_t row, int64_t rows, W* pivots) {
  const auto find = [&](auto extent, double count) DESCEND_INLINED {
    alignas(64) W sums[kMostTileRows];
    for_each_fold<W>(rows, [&](int64_t r, int64_t n, Vector<W>* lanes) DESCEND_INLINED {
      for (int64_t i = 0; i < n; ++i) {
        Pack<W> pack[P::kInputs];
        each<P::kInputs>([&](size_t k) DESCEND_INLINED {
          pack[k] = load_pack(extent, reinterpret_cast<const T*>(p.in[k].row(row + r + i)));
        });
        each<kPackVectors<W>>([&](size_t k) DESCEND_INLINED {
          Vector<W> v[P::kInputs], numbers[kSome<P::kNumbers>];
          each<P::kInputs>([&](size_t j) DESCEND_INLINED { v[j] = pack[j].v[k]; });
          each<P::kNumbers>([&](size_t j) DESCEND_INLINED { numbers[j] = splat(p.numbers[j][row + r + i]); });
          combine<P>(v, numbers);
          pack[0].v[k] = v[0];
        });
        lanes[i] = fold_to_vector<W>(pack[0].v);
      }
      fold_rows<W>(lanes, sums + r);
    });
    const Divisor divisor(count);
    for (int64_t r = 0; r < rows; r += kVectorLanes<double>) {
      store_rounded(Tag<double>(), divisor(load_as_double(sums + r)), pivots + r);
    }
  };
  if (p.columns >= kLanes<W>) return find(Full(), static_cast<double>(kLanes<W>));
  find(Part{static_cast<size_t>(p.columns)}, static_cast<double>(p.columns));
}

// What was just written number by number is read so, too: to load it as a vector would wait for all of the stores.
template <class P, bool kShort, class W>
HWY_NOINLINE void finish_rows(const RowProblem<W>& p, Tile<W>& tile) {
  const Tag<double> d;
  const hn::Rebind<W, Tag<double>> dw;
  constexpr int64_t kStep = kVectorLanes<double>;
  const Divisor divisor(static_cast<double>(p.columns));
  const auto count = [&](Vector<double> sum) DESCEND_INLINED { return kTakesTotals<P> ? sum : divisor(sum); };
  tile.exact = 0;
  int64_t r = 0;
  // Sums of short rows were stored as whole vectors. There are no numbers beyond the last row.
  for (; kShort && r < tile.rows; r += kStep) {
    const size_t rows = static_cast<size_t>(HWY_MIN(kStep, tile.rows - r));
    Vector<double> means[P::kSums], terms[P::kTerms];
    each<P::kSums>([&](size_t i) DESCEND_INLINED { means[i] = count(hn::Load(d, tile.sums[i] + r)); });
    each<P::kNumbers>(
        [&](size_t i) DESCEND_INLINED { terms[i] = widen_to_double(d, load_first(dw, tile.numbers[i] + r, rows)); });
    if constexpr (kHasPivot<P>) terms[P::kPivot] = load_as_double(tile.terms[0] + r);
    const auto holds = P::template finish<W>(means, p.scalars, terms);
    each<P::kTerms - P::kNumbers>([&](size_t i) DESCEND_INLINED {
      hn::Store(narrow_double<W>(d, terms[i + P::kNumbers]), dw, tile.terms[i] + r);
    });
    if (HWY_LIKELY(hn::AllTrue(d, hn::Or(holds, hn::Not(hn::FirstN(d, rows)))))) continue;
    HWY_ALIGN double good[kStep];
    hn::Store(hn::IfThenElseZero(holds, splat(1.0)), d, good);
    for (size_t i = 0; i < rows; ++i) {
      if (good[i] == 0) tile.exact |= uint64_t{1} << (r + static_cast<int64_t>(i));
    }
  }
  for (; !kShort && r < tile.rows; ++r) {
    Vector<double> means[P::kSums], terms[P::kTerms];
    each<P::kSums>([&](size_t i) DESCEND_INLINED { means[i] = count(splat(tile.sums[i][r])); });
    each<P::kNumbers>([&](size_t i) DESCEND_INLINED { terms[i] = splat(static_cast<double>(tile.numbers[i][r])); });
    if constexpr (kHasPivot<P>) terms[P::kPivot] = splat(static_cast<double>(tile.terms[0][r]));
    const auto holds = P::template finish<W>(means, p.scalars, terms);
    each<P::kTerms - P::kNumbers>(
        [&](size_t i) DESCEND_INLINED { tile.terms[i][r] = static_cast<W>(hn::GetLane(terms[i + P::kNumbers])); });
    if (!hn::AllTrue(d, holds)) tile.exact |= uint64_t{1} << r;
  }
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
