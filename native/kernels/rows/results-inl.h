// The second pass over rows, and both passes in step: see sums-inl.h, which says what a program is.
#pragma once

#include "kernels/rows/prefetch-inl.h"
#include "kernels/rows/sums-inl.h"
#include "kernels/simd/mask-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Where results go.
template <class P>
struct Targets {
  Stream at[kOutputs<P>];

  HWY_INLINE bool wanted() const { return at[0].data != nullptr; }
  HWY_INLINE Targets from(int64_t row) const {
    Targets below;
    DESCEND_UNROLL
    for (int i = 0; i < kOutputs<P>; ++i) below.at[i] = {at[i].row(row), at[i].stride};
    return below;
  }
  HWY_INLINE void rows(int64_t row, char* (&to)[kOutputs<P>]) const {
    DESCEND_UNROLL
    for (int i = 0; i < kOutputs<P>; ++i) to[i] = at[i].row(row);
  }
};

// Of a call, from a column on.
template <class P, class T, class W = Wide<T>>
HWY_INLINE Targets<P> targets_of(const RowProblem<W>& p, int64_t begin) {
  Targets<P> targets;
  if (p.out.data == nullptr) return targets;
  const int64_t offset = begin * static_cast<int64_t>(sizeof(T));
  targets.at[0] = {p.out.data + offset, p.out.stride};
  if constexpr (kOutputs<P> > 1) targets.at[1] = {p.second.data + offset, p.second.stride};
  return targets;
}

template <class P, class V>
HWY_INLINE void map_element(const V* in, const V* beside, const V* terms, V* sums, V (&results)[kOutputs<P>]) {
  if constexpr (kOutputs<P> == 1) {
    results[0] = P::map(in, beside, terms, sums);
  } else {
    P::map(in, beside, terms, sums, results);
  }
}

template <class P, class V>
HWY_INLINE void map_only_element(const V* in, const V* terms, V (&results)[kOutputs<P>]) {
  if constexpr (kOutputs<P> == 1) {
    results[0] = P::map_single(in, terms);
  } else {
    P::map_single(in, terms, results);
  }
}

// Columns of a row before the first line of its results, if vectors are to begin there.
template <class P, class T, class W = Wide<T>>
HWY_INLINE int64_t lead_of(const Tile<W>& tile, const T* out) {
  return kIsForward<P> && tile.in_lines ? before_line(out, tile.columns) : 0;
}

// The columns of a pack.
template <class W>
HWY_INLINE int64_t columns_of(Full) {
  return kPackLanes<W>;
}
template <class W>
HWY_INLINE int64_t columns_of(Part part) {
  return static_cast<int64_t>(part.n);
}

// A pair of vectors of a pack of results; mask: the bytes of the pack's columns, if there is one.
template <class P, class T, class Extent>
HWY_INLINE void store_results(Extent extent, bool streams, Vector<Wide<T>> first, Vector<Wide<T>> second, T* p,
                              size_t pair, [[maybe_unused]] const uint8_t* mask = nullptr) {
  if (kHasMask<P> && mask != nullptr) {
    if (streams) return store_unmasked<true, P::kNan, true>(extent, first, second, mask, p, pair);
    return store_unmasked<false, P::kNan>(extent, first, second, mask, p, pair);
  }
  if (streams) return store_pair<true, P::kNan, true>(extent, first, second, p, 2 * pair);
  store_pair<false, P::kNan>(extent, first, second, p, 2 * pair);
}

// All rows are read before any is written: where rows are multiples of a page apart, the processor would hold a load
// back that follows the store to the like place.
template <class P, class T, int kRows, class Extent, class W = Wide<T>>
HWY_INLINE void map_pack(Extent extent, const RowSet<P, T, kRows>& set, int64_t c,
                         T* const (&out)[kOutputs<P>][kRows]) {
  uint8_t bytes[kRows][kHasMask<P> ? MaskRow::kPack : 1];
  const uint8_t* mask[kRows] = {};
  if (kHasMask<P> && set.may_mask) {
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) mask[r] = set.mask[r].pack(c, columns_of<W>(extent), bytes[r]);
  }
  for (size_t pair = 0; pair < kPackPairs<W>; ++pair) {
    Vector<W> result[kOutputs<P>][kRows][2];
    DESCEND_UNROLL
    for (size_t j = 0; j < 2; ++j) {
      const size_t k = 2 * pair + j;
      const size_t at = static_cast<size_t>(c) + k * kVectorLanes<W>;
      Vector<W> beside[kSome<P::kParameters>], sums[kSome<P::kColumnSums>];
      DESCEND_UNROLL
      for (int i = 0; i < P::kParameters; ++i) beside[i] = load(extent, set.parameters[i] + c, k);
      DESCEND_UNROLL
      for (int i = 0; i < P::kColumnSums; ++i) sums[i] = hn::Load(Tag<W>(), set.column_sums[i] + at);
      DESCEND_UNROLL
      for (int r = 0; r < kRows; ++r) {
        Vector<W> v[P::kInputs];
        DESCEND_UNROLL
        for (int i = 0; i < P::kInputs; ++i) v[i] = load(extent, set.in[r][i] + c, k);
        combine<P>(v, set.terms[r]);
        Vector<W> found[kOutputs<P>];
        map_element<P>(v, beside, set.terms[r], sums, found);
        DESCEND_UNROLL
        for (int o = 0; o < kOutputs<P>; ++o) result[o][r][j] = found[o];
      }
      DESCEND_UNROLL
      for (int i = 0; i < P::kColumnSums; ++i) hn::Store(sums[i], Tag<W>(), set.column_sums[i] + at);
    }
    DESCEND_UNROLL
    for (int o = 0; o < kOutputs<P>; ++o) {
      DESCEND_UNROLL
      for (int r = 0; r < kRows; ++r) {
        store_results<P>(extent, set.streams, result[o][r][0], result[o][r][1], out[o][r] + c, pair, mask[r]);
      }
    }
  }
}

// Where column 0 of rows is whose column `begin` belongs to the targets.
template <class T, int kRows, class P>
HWY_INLINE void place_rows(const Targets<P>& to, T* (&out)[kOutputs<P>][kRows], int64_t begin = 0) {
  DESCEND_UNROLL
  for (int o = 0; o < kOutputs<P>; ++o) {
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) out[o][r] = reinterpret_cast<T*>(to.at[o].row(r)) - begin;
  }
}

template <class P, class T, int kRows, class W = Wide<T>>
HWY_INLINE void map_set(const Tile<W>& tile, int64_t row, int64_t begin, int64_t end, const Targets<P>& to) {
  constexpr int64_t kStep = kPackLanes<W>;
  const RowSet<P, T, kRows> set(tile, row, P::kTerms);
  T* out[kOutputs<P>][kRows];
  place_rows<T, kRows>(to, out, begin);
  int64_t c = begin;
  if (const int64_t lead = kRows == 1 ? lead_of<P>(tile, out[0][0] + begin) : 0; lead > 0) {
    map_pack<P, T, kRows>(Part{static_cast<size_t>(lead)}, set, c, out);
    c += lead;
  }
  const bool prefetches = tile.prefetch.maps;
  const Foresight<P, T> foresight(tile);
  for (; c + kStep <= end; c += kStep) {
    if (prefetches) {
      int64_t bytes[P::kInputs];
      foresight.at(c, bytes);
      prefetch_set<P, T, kRows>(set, c, bytes);
    }
    map_pack<P, T, kRows>(Full(), set, c, out);
  }
  if (c < end) map_pack<P, T, kRows>(Part{static_cast<size_t>(end - c)}, set, c, out);
}

// Where short rows lie, row after row.
template <class P, class T>
struct ShortRows {
  using W = Wide<T>;
  const T* in[P::kInputs];
  T* out[kOutputs<P>];
  int64_t strides[P::kInputs], out_strides[kOutputs<P>];  // in bytes
  const W* numbers[kSome<P::kNumbers>];
  const W* terms;  // those that were found, kMostTileRows apart
  const MaskRow* mask;
  int64_t column;
  Vector<W> scalars[kMapTerms<P> - P::kTerms + 1];

  HWY_INLINE ShortRows(const Tile<W>& tile, int64_t row, int64_t c, const Targets<P>& to)
      : terms(tile.terms[0] + row), mask(tile.mask + row), column(c) {
    DESCEND_UNROLL
    for (int o = 0; o < kOutputs<P>; ++o) {
      out[o] = reinterpret_cast<T*>(to.at[o].data) + c;
      out_strides[o] = to.at[o].stride;
    }
    DESCEND_UNROLL
    for (int i = 0; i < kMapTerms<P> - P::kTerms; ++i) scalars[i] = splat(tile.scalars[i]);
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

  HWY_INLINE void next() {
    DESCEND_UNROLL
    for (int o = 0; o < kOutputs<P>; ++o) {
      out[o] = reinterpret_cast<T*>(reinterpret_cast<char*>(out[o]) + out_strides[o]);
    }
    if constexpr (kHasMask<P>) ++mask;
    DESCEND_UNROLL
    for (int i = 0; i < P::kInputs; ++i) {
      in[i] = reinterpret_cast<const T*>(reinterpret_cast<const char*>(in[i]) + strides[i]);
    }
    DESCEND_UNROLL
    for (int i = 0; i < P::kNumbers; ++i) ++numbers[i];
    ++terms;
  }

  // The bytes of the mask beside a pack of results.
  template <class Extent>
  HWY_INLINE const uint8_t* mask_bytes(Extent extent, uint8_t* buffer) const {
    return kHasMask<P> ? mask->pack(column, columns_of<W>(extent), buffer) : nullptr;
  }
};

// A pair of vectors, or one, of a short row.
template <class P, class T, size_t kCount, class Extent, class W = Wide<T>>
HWY_INLINE void map_short_row(Extent extent, ShortRows<P, T>& rows, bool streams, size_t pair,
                              const Vector<W> (&beside)[kCount][kSome<P::kParameters>],
                              Vector<W> (&sums)[kCount][kSome<P::kColumnSums>]) {
  Vector<W> result[kOutputs<P>][kCount];
  Vector<W> terms[kMapTerms<P>];
  DESCEND_UNROLL
  for (int i = 0; i < P::kTerms; ++i) terms[i] = rows.term(i);
  DESCEND_UNROLL
  for (int i = P::kTerms; i < kMapTerms<P>; ++i) terms[i] = rows.scalars[i - P::kTerms];
  DESCEND_UNROLL
  for (size_t j = 0; j < kCount; ++j) {
    Vector<W> v[P::kInputs];
    DESCEND_UNROLL
    for (int i = 0; i < P::kInputs; ++i) v[i] = load(extent, rows.in[i], 2 * pair + j);
    combine<P>(v, terms);
    Vector<W> found[kOutputs<P>];
    map_element<P>(v, beside[j], terms, sums[j], found);
    DESCEND_UNROLL
    for (int o = 0; o < kOutputs<P>; ++o) result[o][j] = found[o];
  }
  uint8_t bytes[kHasMask<P> ? MaskRow::kPack : 1];
  const uint8_t* const mask = rows.mask_bytes(extent, bytes);
  DESCEND_UNROLL
  for (int o = 0; o < kOutputs<P>; ++o) {
    if constexpr (kCount == 1) {
      const size_t k = 2 * pair;
      if constexpr (kHasMask<P>) result[o][0] = hn::IfThenElseZero(load_open<W>(extent, mask, k), result[o][0]);
      if (streams) {
        store_vector<true, P::kNan>(extent, result[o][0], rows.out[o], k);
      } else {
        store_vector<false, P::kNan>(extent, result[o][0], rows.out[o], k);
      }
    } else {
      store_results<P>(extent, streams, result[o][0], result[o][1], rows.out[o], pair, mask);
    }
  }
  rows.next();
}

// What a pass over the columns of short rows has of each row at a time: a pair of vectors.
template <class T>
inline constexpr int64_t kPairColumns = 2 * kVectorLanes<Wide<T>>;

// Whether short rows are mapped column by column, not row by row. Those that know nothing of their columns gain from it
// only up to two packs, and only where a pair fills a line.
template <class P, class T>
HWY_INLINE bool maps_by_columns(int64_t columns) {
  if constexpr (kKeeps<P>) return false;
  if constexpr (!kStandsAlone<P>) return columns <= kRunColumns<Wide<T>>;
  return columns <= 2 * kLanes<Wide<T>> && kPairColumns<T> * sizeof(T) >= 64;
}

// So many columns of a short row are stored before the next row's, where that may be less than a line and was found to
// matter: on plain x86-64 stores are not what takes the time. Rows that know nothing of their columns store whole
// lines.
template <class P, class T>
inline constexpr int64_t kColumnsAtOnce = kStandsAlone<P> || HWY_TARGET != HWY_AVX2 ? kBlockColumns : kPairColumns<T>;

// Short rows: columns by columns, so that parameters and sums of columns stay in registers for all rows.
template <class P, class T, size_t kCount, class Extent, class W = Wide<T>>
HWY_INLINE void map_short_pack(Extent extent, const Tile<W>& tile, int64_t first, int64_t last, int64_t c,
                               const Targets<P>& out) {
  const bool streams = tile.streams;
  for (size_t pair = 0; pair < kPackPairs<W>; ++pair) {
    if (!reaches<W>(extent, 2 * pair)) break;
    Vector<W> beside[kCount][kSome<P::kParameters>], sums[kCount][kSome<P::kColumnSums>];
    const auto at = [&](size_t j) HWY_ATTR { return static_cast<size_t>(c) + (2 * pair + j) * kVectorLanes<W>; };
    DESCEND_UNROLL
    for (size_t j = 0; j < kCount; ++j) {
      DESCEND_UNROLL
      for (int i = 0; i < P::kParameters; ++i) {
        beside[j][i] = load(extent, tile.parameters[i] + c, 2 * pair + j);
      }
      DESCEND_UNROLL
      for (int i = 0; i < P::kColumnSums; ++i) sums[j][i] = hn::Load(Tag<W>(), tile.column_sums[i] + at(j));
    }
    ShortRows<P, T> rows(tile, first, c, out);
    for (int64_t r = first; r < last; ++r) map_short_row<P, T, kCount>(extent, rows, streams, pair, beside, sums);
    DESCEND_UNROLL
    for (size_t j = 0; j < kCount; ++j) {
      DESCEND_UNROLL
      for (int i = 0; i < P::kColumnSums; ++i) hn::Store(sums[j][i], Tag<W>(), tile.column_sums[i] + at(j));
    }
  }
}

template <class P, class T, class W = Wide<T>>
HWY_NOINLINE void map_short_rows(const Tile<W>& tile, int64_t first, int64_t last, const Targets<P>& out) {
  constexpr int64_t kStep = kPackLanes<W>;
  int64_t c = 0;
  for (; c + kStep <= tile.columns; c += kStep) map_short_pack<P, T, 2>(Full(), tile, first, last, c, out);
  if (c == tile.columns) return;
  const Part part{static_cast<size_t>(tile.columns - c)};
  // Where a vector is enough, the other of a pair is not touched.
  if (kPackPairs<W> == 1 && !reaches<W>(part, 1)) return map_short_pack<P, T, 1>(part, tile, first, last, c, out);
  map_short_pack<P, T, 2>(part, tile, first, last, c, out);
}

// Rows of less than a pack that lie one behind the other may be mapped as if they were one, and those of at most so
// many bytes if they are not mapped column by column, or if their results are staged, which takes whole vectors best.
// In longer ones what is done once for a row takes less than to set each term beside its elements.
inline constexpr int64_t kDenseBytes = 384;
inline constexpr int64_t kDenseElements = 4096;  // of a tile of these, at most

// Such rows: each term of a row stands beside all of its elements.
template <class P, class T, class W = Wide<T>>
HWY_NOINLINE void map_dense_rows(const Tile<W>& tile, int64_t first, int64_t last, char* to) {
  const int64_t begin = first * tile.columns, n = (last - first) * tile.columns;
  Spread<T, kDenseElements> found[kFoundTerms<P>];
  DESCEND_UNROLL
  for (int i = 0; i < kFoundTerms<P>; ++i) found[i].fill(tile.terms[i] + first, last - first, tile.columns);
  static_assert(P::kNumbers == 0);
  const T* from[P::kInputs];
  int64_t ahead[P::kInputs];
  const bool prefetches = tile.prefetch.maps;
  DESCEND_UNROLL
  for (int i = 0; i < P::kInputs; ++i) {
    from[i] = reinterpret_cast<const T*>(tile.in[i].data) + begin;
    ahead[i] = tile.prefetch.beyond[i] / static_cast<int64_t>(sizeof(T));
  }
  T* const out = reinterpret_cast<T*>(to);
  const uint8_t* const mask = kHasMask<P> && tile.mask_bytes != MaskRow::kNone ? tile.mask_bytes + begin : nullptr;
  const bool streams = tile.streams;
  Vector<W>* const none = nullptr;  // beside the rows
  Vector<W> terms[kMapTerms<P>];
  load_scalars<P>(tile, terms);
  for_each_pack<W>(0, n, [&](auto extent, int64_t c) DESCEND_INLINED {
    if (prefetches) {
      DESCEND_UNROLL
      for (int i = 0; i < P::kInputs; ++i) prefetch_pack<prefetch_distant>(from[i] + c, ahead[i]);
    }
    DESCEND_UNROLL
    for (size_t pair = 0; pair < kPackPairs<W>; ++pair) {
      Vector<W> result[2];
      DESCEND_UNROLL
      for (size_t j = 0; j < 2; ++j) {
        const size_t k = 2 * pair + j;
        Vector<W> v[P::kInputs];
        DESCEND_UNROLL
        for (int i = 0; i < P::kInputs; ++i) v[i] = load(extent, from[i] + c, k);
        DESCEND_UNROLL
        for (int i = 0; i < kFoundTerms<P>; ++i) terms[i] = found[i].at(c, k);
        combine<P>(v, terms);
        result[j] = P::template map<Vector<W>>(v, none, terms, none);
      }
      store_results<P>(extent, streams, result[0], result[1], out + c, pair, mask == nullptr ? nullptr : mask + c);
    }
  });
}

// Rows of one element that narrow_rows does not take, those of double, where they have a formula of their own.
template <class P, class T, class W = Wide<T>>
HWY_NOINLINE void map_single_rows(const Tile<W>& tile, int64_t first, int64_t last, const Targets<P>& out) {
  const Part one{1};
  Vector<W> beside[kSome<P::kParameters>], sums[kSome<P::kColumnSums>], v[P::kInputs], terms[kMapTerms<P>];
  each<P::kParameters>([&](size_t i) DESCEND_INLINED { beside[i] = load(one, tile.parameters[i], 0); });
  each<P::kColumnSums>([&](size_t i) DESCEND_INLINED { sums[i] = hn::Load(Tag<W>(), tile.column_sums[i]); });
  ShortRows<P, T> rows(tile, first, 0, out);
  for (; first < last; ++first) {
    each<P::kInputs>([&](size_t i) DESCEND_INLINED { v[i] = load(one, rows.in[i], 0); });
    each<P::kTerms>([&](size_t i) DESCEND_INLINED { terms[i] = rows.term(static_cast<int>(i)); });
    combine<P>(v, terms);
    Vector<W> found[kOutputs<P>];
    map_element<P>(v, beside, terms, sums, found);
    map_only_element<P>(v, terms, found);
    DESCEND_UNROLL
    for (int o = 0; o < kOutputs<P>; ++o) store_vector<false, P::kNan>(one, found[o], rows.out[o], 0);
    rows.next();
  }
  each<P::kColumnSums>([&](size_t i) DESCEND_INLINED { hn::Store(sums[i], Tag<W>(), tile.column_sums[i]); });
}

template <class P, class T, class W = Wide<T>>
HWY_NOINLINE void map_rows(const Tile<W>& tile, int64_t first, int64_t last, int64_t begin, int64_t end,
                           const Targets<P>& out) {
  constexpr int kSet = P::kRowsMapped;
  int64_t r = first;
  if constexpr (kSet > 1) {
    for (; r + kSet <= last; r += kSet) {
      map_set<P, T, kSet>(tile, r, begin, end, out.from(r - first));
    }
  }
  for (; r < last; ++r) map_set<P, T, 1>(tile, r, begin, end, out.from(r - first));
}

// ---- Both passes: the second over a tile takes turns of a few columns with the first over the next one. Reads,
// arithmetic and writes then run side by side, where one pass after the other would leave memory idle now and then.

template <class P, class T, int kRows, class W = Wide<T>>
HWY_INLINE void step_set(Tile<W>& next, const Tile<W>& tile, const Targets<P>& to) {
  constexpr int64_t kStep = kPackLanes<W>, kTurn = kRows == 1 ? 512 / static_cast<int64_t>(sizeof(T)) : 64;
  RunSums<P, T, kRows> sums(next, 0);
  const RowSet<P, T, kRows> set(tile, 0, P::kTerms);
  const int64_t columns = tile.columns;
  T* out[kOutputs<P>][kRows];
  place_rows<T, kRows>(to, out);
  int64_t mapped = kRows == 1 ? lead_of<P>(tile, out[0][0]) : 0;
  if (mapped > 0) map_pack<P, T, kRows>(Part{static_cast<size_t>(mapped)}, set, 0, out);
  for (int64_t c = 0; c < columns;) {
    const int64_t run_end = HWY_MIN(c + kRunColumns<W>, columns);
    if constexpr (kRows == 1 && kStandsAlone<P>) {
      if (!sums.in_order() && run_end - c == kRunColumns<W> && mapped + kRunColumns<W> <= run_end) {
        sums.add_run(c, [&](int64_t done) DESCEND_INLINED { map_pack<P, T, 1>(Full(), set, mapped + done, out); });
        sums.end_run(run_end);
        mapped += kRunColumns<W>;
        c = run_end;
        continue;
      }
    }
    sums.start_run();
    while (c < run_end) {
      const int64_t turn_end = HWY_MIN(c + kTurn, run_end);
      sums.add(c, turn_end);
      for (; mapped + kStep <= turn_end; mapped += kStep) map_pack<P, T, kRows>(Full(), set, mapped, out);
      c = turn_end;
    }
    sums.end_run(run_end);
  }
  if (mapped < columns) map_pack<P, T, kRows>(Part{static_cast<size_t>(columns - mapped)}, set, mapped, out);
  sums.finish(columns, next, 0);
}

template <class P, class T, class W = Wide<T>>
HWY_NOINLINE void step_rows(Tile<W>& next, const Tile<W>& tile, const Targets<P>& to) {
  if constexpr (P::kRowsMapped > 1) {
    if (tile.rows > 1) return step_set<P, T, 2>(next, tile, to);
  }
  step_set<P, T, 1>(next, tile, to);
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
