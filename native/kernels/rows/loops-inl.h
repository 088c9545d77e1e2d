// The loops over rows, written once for all operators: a program says what is done to a vector.
//
// A program is a struct of numbers and of functions on vectors:
//   kInputs, kParameters, kNumbers, kTerms (numbers included), kSums, kColumnSums
//   kRowsAtOnce                               rows that the registers hold in the first pass
//   kRowsMapped                               and in the second
//   kKeepsLoaded                              whether the first pass keeps a loaded pack of bfloat16 in registers
//   kNan                                      where NaNs in results of 16 bits come from
//   sum(in, parameters, numbers, sums)        adds to a row's sums; inputs are 0 beyond the row
//   finish(means, terms)                      a row's terms, in double, from the means of its sums; whether they hold
//   map(in, parameters, terms, column_sums)   the result; adds to the column sums
//   map_single(in, terms)                     the result in rows of one element, where it is not map's; optional
#if defined(DESCEND_KERNELS_ROWS_LOOPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DESCEND_KERNELS_ROWS_LOOPS_INL_H_
#undef DESCEND_KERNELS_ROWS_LOOPS_INL_H_
#else
#define DESCEND_KERNELS_ROWS_LOOPS_INL_H_
#endif

#include "kernels/fold_rows-inl.h"
#include "kernels/pack-inl.h"
#include "kernels/rows/engine.h"
#include "kernels/split_pack-inl.h"
#include "kernels/spread-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Whether the result in rows of one element has a formula of its own.
template <class P>
inline constexpr bool kHasSingle = requires(const Vector<float>* v) { P::map_single(v, v); };

// Terms that follow from the sums.
template <class P>
inline constexpr int kFoundTerms = int{P::kTerms} - int{P::kNumbers};

// A row's numbers and the terms that follow from its sums, as vectors; known: so many of them.
template <class P, class W>
HWY_INLINE void load_terms(const Tile<W>& tile, int64_t row, int known, Vector<W> (&terms)[P::kTerms]) {
  DESCEND_UNROLL
  for (int i = 0; i < P::kTerms; ++i) {
    if (i < known) terms[i] = splat(i < P::kNumbers ? tile.numbers[i][row] : tile.terms[i - P::kNumbers][row]);
  }
}

// Rows that are worked on side by side.
template <class P, class T, int kRows>
struct RowSet {
  using W = Wide<T>;
  const T* in[kRows][P::kInputs];
  Vector<W> terms[kRows][P::kTerms];
  // Copies: the compiler must think that a vector that is stored may change those of the tile.
  const W* parameters[P::kParameters];
  W* column_sums[P::kColumnSums];
  bool streams;

  HWY_INLINE RowSet(const Tile<W>& tile, int64_t row, int known) : streams(tile.streams) {
    DESCEND_UNROLL
    for (int i = 0; i < P::kParameters; ++i) parameters[i] = tile.parameters[i];
    DESCEND_UNROLL
    for (int i = 0; i < P::kColumnSums; ++i) column_sums[i] = tile.column_sums[i];
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) {
      DESCEND_UNROLL
      for (int i = 0; i < P::kInputs; ++i) in[r][i] = reinterpret_cast<const T*>(tile.in[i].row(row + r));
      load_terms<P>(tile, row + r, known, terms[r]);
    }
  }
};

// Rows [row, row + rows) from column `begin` on.
template <class P, class T, class W = Wide<T>>
HWY_INLINE void place_tile(const RowProblem<W>& p, int64_t row, int64_t rows, int64_t begin, int64_t columns,
                           Tile<W>& tile) {
  const int64_t offset = begin * static_cast<int64_t>(sizeof(T));
  tile.rows = rows;
  tile.columns = columns;
  tile.exact = 0;
  DESCEND_UNROLL
  for (int i = 0; i < P::kInputs; ++i) {
    tile.in[i].data = p.in[i].row(row) + offset;
    tile.in[i].stride = p.in[i].stride;
  }
  tile.out.data = p.out.data == nullptr ? nullptr : p.out.row(row) + offset;
  tile.out.stride = p.out.stride;
  DESCEND_UNROLL
  for (int i = 0; i < P::kNumbers; ++i) tile.numbers[i] = p.numbers[i] + row;
}

// ---- Sums over a row.

template <class P, class T, int kRows, class Extent, class W = Wide<T>>
HWY_INLINE void sum_pack(Extent extent, const RowSet<P, T, kRows>& set, int64_t c, Pack<W> (&sums)[P::kSums][kRows]) {
  SplitPack<T, Extent, P::kKeepsLoaded> in[kRows][P::kInputs];
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) {
    DESCEND_UNROLL
    for (int i = 0; i < P::kInputs; ++i) in[r][i] = {extent, set.in[r][i] + c};
  }
  DESCEND_UNROLL
  for (size_t k = 0; k < kPackVectors<W>; ++k) {
    if (!reaches<T>(extent, k)) break;
    Vector<W> beside[P::kParameters];
    DESCEND_UNROLL
    for (int i = 0; i < P::kParameters; ++i) beside[i] = load_beside<T>(extent, set.parameters[i] + c, k);
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) {
      Vector<W> v[P::kInputs], sum[P::kSums];
      DESCEND_UNROLL
      for (int i = 0; i < P::kInputs; ++i) v[i] = in[r][i][k];
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
  HWY_INLINE explicit RunSums(const Tile<W>& tile, int64_t row) : set_(tile, row, P::kNumbers), foresight_(tile) {
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
    if (foresight_.ahead != 0) {
      int64_t bytes[P::kInputs];
      foresight_.at(begin, bytes);
      for (; c + kStep <= end; c += kStep) {
        prefetch_set<P, T, kRows>(set_, c, bytes);
        sum_pack<P, T, kRows>(Full(), set_, c, sums_);
      }
    }
    for (; c + kStep <= end; c += kStep) sum_pack<P, T, kRows>(Full(), set_, c, sums_);
    if (c < end) sum_pack<P, T, kRows>(Part{static_cast<size_t>(end - c)}, set_, c, sums_);
  }

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
  for (int64_t c = 0; c < tile.columns; c += kRunColumns<W>) {
    const int64_t end = HWY_MIN(c + kRunColumns<W>, tile.columns);
    sums.start_run();
    sums.add(c, end);
    sums.end_run(end);
  }
  sums.finish(tile.columns, tile, row);
}

// How long short rows are: half a pack or less, a pack, or more.
enum class Length { kHalf, kPack, kRun };

// Rows of one run: each leaves one vector, and the vectors of eight rows are folded together.
template <class P, class T, Length kLength, class W = Wide<T>>
HWY_NOINLINE void sum_short_rows(Tile<W>& tile, int64_t columns) {
  constexpr int64_t kFolded = kFoldRows<double>;
  const Tag<double> d;
  constexpr int64_t kStep = kPackLanes<W>;
  const int64_t whole = kLength == Length::kRun ? columns / kStep * kStep : 0;
  const Part rest{static_cast<size_t>(columns - whole)};
  RowSet<P, T, 1> set(tile, 0, 0);
  int64_t strides[P::kInputs];
  each<P::kInputs>([&](size_t i) DESCEND_INLINED { strides[i] = tile.in[i].stride; });
  for (int64_t row = 0; row < tile.rows; row += kFolded) {
    Vector<double> folded[P::kSums][kFolded];
    const auto sum_row = [&](int64_t r) DESCEND_INLINED {
      load_terms<P>(tile, row + r, P::kNumbers, set.terms[0]);
      Pack<W> sums[P::kSums][1];
      zero_sums<P, 1>(sums);
      for (int64_t c = 0; c < whole; c += kStep) sum_pack<P, T, 1>(Full(), set, c, sums);
      if (kLength != Length::kRun || rest.n > 0) sum_pack<P, T, 1>(rest, set, whole, sums);
      each<P::kSums>([&](size_t i)
                         DESCEND_INLINED { folded[i][r] = fold_as_double < kLength == Length::kHalf > (sums[i][0]); });
      each<P::kInputs>([&](size_t i) DESCEND_INLINED {
        set.in[0][i] = reinterpret_cast<const T*>(reinterpret_cast<const char*>(set.in[0][i]) + strides[i]);
      });
    };
    if (HWY_TARGET == HWY_AVX3 && row + static_cast<int64_t>(kFolded) <= tile.rows) {
      each<kFolded>([&](size_t r) DESCEND_INLINED { sum_row(static_cast<int64_t>(r)); });
    } else {
      for (int64_t r = 0; r < kFolded; ++r) {
        if (row + r < tile.rows) {
          sum_row(r);
        } else {
          each<P::kSums>([&](size_t i) DESCEND_INLINED { folded[i][r] = hn::Zero(d); });
        }
      }
    }
    each<P::kSums>([&](size_t i) DESCEND_INLINED { fold_rows<double>(folded[i], tile.sums[i] + row); });
  }
}

// The sums of a tile's rows. kShort: they are short ones.
template <class P, class T, bool kShort, class W = Wide<T>>
HWY_INLINE void sum_rows(Tile<W>& tile) {
  constexpr int kSet = P::kRowsAtOnce;
  if constexpr (kShort) {
    if constexpr (!kSplits<T>) {
      if (tile.columns <= kLanes<W> / 2) return sum_short_rows<P, T, Length::kHalf>(tile, tile.columns);
    }
    if constexpr (!kIsShort<T>) {
      if (tile.columns > kLanes<W>) return sum_short_rows<P, T, Length::kRun>(tile, tile.columns);
    }
    return sum_short_rows<P, T, Length::kPack>(tile, tile.columns);
  }
  int64_t r = 0;
  if constexpr (kSet > 1) {
    for (; r + kSet <= tile.rows; r += kSet) sum_long_rows<P, T, kSet>(tile, r);
  }
  for (; r < tile.rows; ++r) sum_long_rows<P, T, 1>(tile, r);
}

// ---- Terms.

// What was just written number by number is read so, too: to load it as a vector would wait for all of the stores.
template <class P, class T, bool kShort, class W = Wide<T>>
HWY_NOINLINE void finish_rows(Tile<W>& tile, int64_t columns) {
  const Tag<double> d;
  const hn::Rebind<W, Tag<double>> dw;
  constexpr int64_t kStep = kVectorLanes<double>;
  const Divisor count(static_cast<double>(columns));
  tile.exact = 0;
  int64_t r = 0;
  // Sums of short rows were stored as whole vectors. There are no numbers beyond the last row.
  for (; kShort && r < tile.rows; r += kStep) {
    const size_t rows = static_cast<size_t>(HWY_MIN(kStep, tile.rows - r));
    Vector<double> means[P::kSums], terms[P::kTerms];
    each<P::kSums>([&](size_t i) DESCEND_INLINED { means[i] = count(hn::Load(d, tile.sums[i] + r)); });
    each<P::kNumbers>(
        [&](size_t i) DESCEND_INLINED { terms[i] = widen_to_double(d, load_first(dw, tile.numbers[i] + r, rows)); });
    const auto holds = P::template finish<W>(means, terms);
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
    const auto holds = P::template finish<W>(means, terms);
    each<P::kTerms - P::kNumbers>(
        [&](size_t i) DESCEND_INLINED { tile.terms[i][r] = static_cast<W>(hn::GetLane(terms[i + P::kNumbers])); });
    if (!hn::AllTrue(d, holds)) tile.exact |= uint64_t{1} << r;
  }
}

// ---- Results.

// A pair of vectors of a pack of results.
template <class P, class T, class Extent>
HWY_INLINE void store_results(Extent extent, bool streams, Vector<Wide<T>> first, Vector<Wide<T>> second, T* p,
                              size_t pair) {
  if (streams) return store_split<true, P::kNan, true>(extent, first, second, p, pair);
  store_split<false, P::kNan>(extent, first, second, p, pair);
}

// All rows are read before any is written: where rows are multiples of a page apart, the processor would hold a load
// back that follows the store to the like place.
template <class P, class T, int kRows, class Extent, class W = Wide<T>>
HWY_INLINE void map_pack(Extent extent, const RowSet<P, T, kRows>& set, int64_t c, T* const (&out)[kRows]) {
  SplitPack<T, Extent> in[kRows][P::kInputs];
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) {
    DESCEND_UNROLL
    for (int i = 0; i < P::kInputs; ++i) in[r][i] = {extent, set.in[r][i] + c};
  }
  DESCEND_UNROLL
  for (size_t pair = 0; pair < kVectorPairs<T>; ++pair) {
    Vector<W> result[kRows][2];
    DESCEND_UNROLL
    for (size_t j = 0; j < 2; ++j) {
      const size_t k = pair_vector<T>(pair, j);
      const size_t at = static_cast<size_t>(c) + k * kVectorLanes<W>;
      Vector<W> beside[P::kParameters], sums[P::kColumnSums];
      DESCEND_UNROLL
      for (int i = 0; i < P::kParameters; ++i) beside[i] = load_beside<T>(extent, set.parameters[i] + c, k);
      DESCEND_UNROLL
      for (int i = 0; i < P::kColumnSums; ++i) sums[i] = hn::Load(Tag<W>(), set.column_sums[i] + at);
      DESCEND_UNROLL
      for (int r = 0; r < kRows; ++r) {
        Vector<W> v[P::kInputs];
        DESCEND_UNROLL
        for (int i = 0; i < P::kInputs; ++i) v[i] = in[r][i][k];
        result[r][j] = P::map(v, beside, set.terms[r], sums);
      }
      DESCEND_UNROLL
      for (int i = 0; i < P::kColumnSums; ++i) hn::Store(sums[i], Tag<W>(), set.column_sums[i] + at);
    }
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) {
      store_results<P>(extent, set.streams, result[r][0], result[r][1], out[r] + c, pair);
    }
  }
}

template <class P, class T, int kRows, class W = Wide<T>>
HWY_INLINE void map_set(const Tile<W>& tile, int64_t row, int64_t begin, int64_t end, const Stream& to) {
  constexpr int64_t kStep = kPackLanes<W>;
  const RowSet<P, T, kRows> set(tile, row, P::kTerms);
  T* out[kRows];
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) out[r] = reinterpret_cast<T*>(to.row(r)) - begin;
  int64_t c = begin;
  if (tile.prefetch.maps) {
    const int64_t inside = tile.columns - tile.prefetch.inside / static_cast<int64_t>(sizeof(T));
    int64_t ahead[P::kInputs];
    DESCEND_UNROLL
    for (int i = 0; i < P::kInputs; ++i) ahead[i] = tile.prefetch.inside;
    for (; c + kStep <= end; c += kStep) {
      prefetch_set<P, T, kRows>(set, c, c < inside ? ahead : tile.prefetch.beyond);
      map_pack<P, T, kRows>(Full(), set, c, out);
    }
  }
  for (; c + kStep <= end; c += kStep) map_pack<P, T, kRows>(Full(), set, c, out);
  if (c < end) map_pack<P, T, kRows>(Part{static_cast<size_t>(end - c)}, set, c, out);
}

// Where short rows lie, row after row.
template <class P, class T>
struct ShortRows {
  using W = Wide<T>;
  const T* in[P::kInputs];
  T* out;
  int64_t strides[P::kInputs], out_stride;  // in bytes
  const W* numbers[P::kNumbers];
  const W* terms;  // those that were found, kMostTileRows apart

  HWY_INLINE ShortRows(const Tile<W>& tile, int64_t row, int64_t c, const Stream& to)
      : out(reinterpret_cast<T*>(to.data) + c), out_stride(to.stride), terms(tile.terms[0] + row) {
    DESCEND_UNROLL
    for (int i = 0; i < P::kInputs; ++i) {
      in[i] = reinterpret_cast<const T*>(tile.in[i].row(row)) + c;
      strides[i] = tile.in[i].stride;
    }
    DESCEND_UNROLL
    for (int i = 0; i < P::kNumbers; ++i) numbers[i] = tile.numbers[i] + row;
  }

  HWY_INLINE Vector<W> term(int i) const {
    return splat(i < P::kNumbers ? *numbers[i] : terms[(i - P::kNumbers) * kMostTileRows]);
  }

  HWY_INLINE void next_row() {
    DESCEND_UNROLL
    for (int i = 0; i < P::kInputs; ++i) {
      in[i] = reinterpret_cast<const T*>(reinterpret_cast<const char*>(in[i]) + strides[i]);
    }
    DESCEND_UNROLL
    for (int i = 0; i < P::kNumbers; ++i) ++numbers[i];
    ++terms;
  }

  HWY_INLINE void next_result() { out = reinterpret_cast<T*>(reinterpret_cast<char*>(out) + out_stride); }
};

// Short rows: columns by columns, so that parameters and sums of columns stay in registers for all rows.
template <class P, class T, int kRows, size_t kCount, class Extent, class W = Wide<T>>
HWY_INLINE void map_short_set(Extent extent, ShortRows<P, T>& rows, bool streams, size_t pair,
                              const Vector<W> (&beside)[kCount][P::kParameters],
                              Vector<W> (&sums)[kCount][P::kColumnSums]) {
  Vector<W> result[kRows][kCount];
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) {
    Vector<W> terms[P::kTerms];
    DESCEND_UNROLL
    for (int i = 0; i < P::kTerms; ++i) terms[i] = rows.term(i);
    DESCEND_UNROLL
    for (size_t j = 0; j < kCount; ++j) {
      Vector<W> v[P::kInputs];
      DESCEND_UNROLL
      for (int i = 0; i < P::kInputs; ++i) v[i] = load_split(extent, rows.in[i], pair_vector<T>(pair, j));
      result[r][j] = P::map(v, beside[j], terms, sums[j]);
    }
    rows.next_row();
  }
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) {
    if constexpr (kCount == 1) {
      if (streams) {
        store_vector<true, P::kNan>(extent, result[r][0], rows.out, pair_first<T>(pair));
      } else {
        store_vector<false, P::kNan>(extent, result[r][0], rows.out, pair_first<T>(pair));
      }
    } else {
      store_results<P>(extent, streams, result[r][0], result[r][1], rows.out, pair);
    }
    rows.next_result();
  }
}

template <class P, class T, size_t kCount, class Extent, class W = Wide<T>>
HWY_INLINE void map_short_pack(Extent extent, const Tile<W>& tile, int64_t first, int64_t last, int64_t c,
                               const Stream& out) {
  constexpr int kSet = HWY_TARGET == HWY_AVX3 ? 4 : 1;
  const bool streams = tile.streams;
  for (size_t pair = 0; pair < kVectorPairs<T>; ++pair) {
    if (!reaches<T>(extent, pair_first<T>(pair))) break;
    Vector<W> beside[kCount][P::kParameters], sums[kCount][P::kColumnSums];
    const auto at = [&](size_t j)
                        HWY_ATTR { return static_cast<size_t>(c) + pair_vector<T>(pair, j) * kVectorLanes<W>; };
    DESCEND_UNROLL
    for (size_t j = 0; j < kCount; ++j) {
      DESCEND_UNROLL
      for (int i = 0; i < P::kParameters; ++i) {
        beside[j][i] = load_beside<T>(extent, tile.parameters[i] + c, pair_vector<T>(pair, j));
      }
      DESCEND_UNROLL
      for (int i = 0; i < P::kColumnSums; ++i) sums[j][i] = hn::Load(Tag<W>(), tile.column_sums[i] + at(j));
    }
    ShortRows<P, T> rows(tile, first, c, out);
    int64_t left = last - first;
    for (; left >= kSet; left -= kSet) map_short_set<P, T, kSet, kCount>(extent, rows, streams, pair, beside, sums);
    for (; left > 0; --left) map_short_set<P, T, 1, kCount>(extent, rows, streams, pair, beside, sums);
    DESCEND_UNROLL
    for (size_t j = 0; j < kCount; ++j) {
      DESCEND_UNROLL
      for (int i = 0; i < P::kColumnSums; ++i) hn::Store(sums[j][i], Tag<W>(), tile.column_sums[i] + at(j));
    }
  }
}

template <class P, class T, class W = Wide<T>>
HWY_NOINLINE void map_short_rows(const Tile<W>& tile, int64_t first, int64_t last, const Stream& out) {
  constexpr int64_t kStep = kPackLanes<W>;
  int64_t c = 0;
  for (; c + kStep <= tile.columns; c += kStep) map_short_pack<P, T, 2>(Full(), tile, first, last, c, out);
  if (c == tile.columns) return;
  const Part part{static_cast<size_t>(tile.columns - c)};
  if constexpr (!kSplits<T>) {  // where a vector is enough, the other of a pair is not touched
    if (kVectorPairs<T> == 1 && !reaches<T>(part, 1)) return map_short_pack<P, T, 1>(part, tile, first, last, c, out);
  }
  map_short_pack<P, T, 2>(part, tile, first, last, c, out);
}

// Rows of one element that narrow_rows does not take, those of double, where they have a formula of their own.
template <class P, class T, class W = Wide<T>>
HWY_NOINLINE void map_single_rows(const Tile<W>& tile, int64_t first, int64_t last, const Stream& out) {
  const Part one{1};
  Vector<W> beside[P::kParameters], sums[P::kColumnSums], v[P::kInputs], terms[P::kTerms];
  each<P::kParameters>([&](size_t i) DESCEND_INLINED { beside[i] = load_beside<T>(one, tile.parameters[i], 0); });
  each<P::kColumnSums>([&](size_t i) DESCEND_INLINED { sums[i] = hn::Load(Tag<W>(), tile.column_sums[i]); });
  ShortRows<P, T> rows(tile, first, 0, out);
  for (; first < last; ++first) {
    each<P::kInputs>([&](size_t i) DESCEND_INLINED { v[i] = load_split(one, rows.in[i], 0); });
    each<P::kTerms>([&](size_t i) DESCEND_INLINED { terms[i] = rows.term(static_cast<int>(i)); });
    P::map(v, beside, terms, sums);
    store_vector<false, P::kNan>(one, P::map_single(v, terms), rows.out, 0);
    rows.next_row();
    rows.next_result();
  }
  each<P::kColumnSums>([&](size_t i) DESCEND_INLINED { hn::Store(sums[i], Tag<W>(), tile.column_sums[i]); });
}

template <class P, class T, class W = Wide<T>>
HWY_NOINLINE void map_rows(const Tile<W>& tile, int64_t first, int64_t last, int64_t begin, int64_t end,
                           const Stream& out) {
  constexpr int kSet = P::kRowsMapped;
  int64_t r = first;
  if constexpr (kSet > 1) {
    for (; r + kSet <= last; r += kSet) {
      map_set<P, T, kSet>(tile, r, begin, end, {out.row(r - first), out.stride});
    }
  }
  for (; r < last; ++r) map_set<P, T, 1>(tile, r, begin, end, {out.row(r - first), out.stride});
}

// ---- Both passes: the second over a tile takes turns of a few columns with the first over the next one. Reads,
// arithmetic and writes then run side by side, where one pass after the other would leave memory idle now and then.

template <class P, class T, int kRows, class W = Wide<T>>
HWY_INLINE void step_set(Tile<W>& next, const Tile<W>& tile, const Stream& to) {
  constexpr int64_t kStep = kPackLanes<W>, kTurn = kRows == 1 ? 512 / static_cast<int64_t>(sizeof(T)) : 64;
  RunSums<P, T, kRows> sums(next, 0);
  const RowSet<P, T, kRows> set(tile, 0, P::kTerms);
  const int64_t columns = tile.columns;
  T* out[kRows];
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) out[r] = reinterpret_cast<T*>(to.row(r));
  for (int64_t c = 0; c < columns;) {
    const int64_t run_end = HWY_MIN(c + kRunColumns<W>, columns);
    sums.start_run();
    while (c < run_end) {
      const int64_t turn_end = HWY_MIN(c + kTurn, run_end);
      sums.add(c, turn_end);
      for (; c + kStep <= turn_end; c += kStep) map_pack<P, T, kRows>(Full(), set, c, out);
      if (c < turn_end) {
        map_pack<P, T, kRows>(Part{static_cast<size_t>(turn_end - c)}, set, c, out);
        c = turn_end;
      }
    }
    sums.end_run(run_end);
  }
  sums.finish(columns, next, 0);
}

template <class P, class T, class W = Wide<T>>
HWY_NOINLINE void step_rows(Tile<W>& next, const Tile<W>& tile, const Stream& to) {
  if constexpr (P::kRowsMapped > 1) {
    if (tile.rows > 1) return step_set<P, T, 2>(next, tile, to);
  }
  step_set<P, T, 1>(next, tile, to);
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DESCEND_KERNELS_ROWS_LOOPS_INL_H_
