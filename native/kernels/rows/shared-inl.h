// Few rows with many columns: the threads share some rows, each taking blocks of columns.
#pragma once

#include "kernels/rows/sum_columns-inl.h"
#include "kernels/rows/walk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// What is asked for while rows [r, r + rows) of a group are read, n of their columns: what follows in the rows, then
// the rows below or, of the last ones, the next columns of the first.
template <class P, class T, class W = Wide<T>>
HWY_INLINE void place_prefetch(const RowCall<W>& call, const RowGroup& group, int64_t r, int64_t rows, int64_t n,
                               Tile<W>& tile) {
  const int64_t row_bytes = n * static_cast<int64_t>(sizeof(T));
  tile.prefetch.inside = HWY_MIN(call.schedule.ahead, row_bytes);
  DESCEND_UNROLL
  for (int i = 0; i < P::kInputs; ++i) {
    const int64_t stride = call.problem.in[i].stride;
    tile.prefetch.beyond[i] =
        (r + rows < group.rows ? rows * stride : row_bytes - r * stride) + tile.prefetch.inside - row_bytes;
  }
}

// Rows [r, r + rows) of the group below, n columns, whose sums are to be found.
template <class P, class T, class W = Wide<T>>
HWY_INLINE void place_below(const RowCall<W>& call, const SharedRows<W>& shared, int64_t r, int64_t rows, int64_t begin,
                            int64_t n, Tile<W>& tile) {
  const RowGroup& below = shared.below;
  place_tile<P, T>(call.problem, below.row + r, rows, begin, n, tile);
  if constexpr (kHasPivot<P>) copy_few(shared.pivots + r, rows, tile.terms[0]);
  if (call.schedule.ahead != 0) place_prefetch<P, T>(call, below, r, rows, n, tile);
}

// Sum k of row r of a group in a block.
template <class P, class W>
HWY_INLINE double& sum_of(const SharedRows<W>& shared, const RowGroup& group, int64_t block, int64_t r, int k) {
  return shared.sums[(block * group.rows + r) * P::kSums + k];
}

template <class P, class W>
HWY_INLINE void keep_sums(const SharedRows<W>& shared, int64_t block, int64_t r, const Tile<W>& tile) {
  for (int64_t i = 0; i < tile.rows; ++i) {
    DESCEND_UNROLL
    for (int k = 0; k < P::kSums; ++k) sum_of<P>(shared, shared.below, block, r + i, k) = tile.sums[k][i];
  }
}

template <class P, class T, class W = Wide<T>>
void block_sums(const RowCall<W>& call, const SharedRows<W>& shared, int64_t block) {
  const int64_t begin = block * kBlockColumns, n = HWY_MIN(kBlockColumns, call.problem.columns - begin);
  HWY_ALIGN W room[kSome<P::kParameters> * kBlockColumns];
  Tile<W> tile;
  if constexpr (!kIsForward<P>) {
    place_parameters<P, T>(call.problem, begin, n, room, kBlockColumns, tile.parameters);
  }
  for (int64_t r = 0; r < shared.below.rows; r += tile.rows) {
    place_below<P, T>(call, shared, r, HWY_MIN(kLongTileRows, shared.below.rows - r), begin, n, tile);
    sum_rows<P, T, false>(tile);
    keep_sums<P>(shared, block, r, tile);
  }
}

// The pivots of the group below.
template <class P, class T, class W = Wide<T>>
void shared_pivots(const RowCall<W>& call, SharedRows<W>& shared) {
  if constexpr (kHasPivot<P>) {
    for (int64_t r = 0; r < shared.below.rows; r += kMostTileRows) {
      const int64_t rows = HWY_MIN(kMostTileRows, shared.below.rows - r);
      alignas(64) W pivots[kMostTileRows];
      find_pivots<P, T>(call.problem, shared.below.row + r, rows, pivots);
      copy_few(pivots, rows, shared.pivots + r);
    }
  }
}

// The terms of the group below. If there are rows whose pivot was far off, they get one that is near, and the answer is
// false, unless this was done before.
template <class P, class T, class W = Wide<T>>
bool shared_terms(const RowCall<W>& call, SharedRows<W>& shared, bool again) {
  const RowGroup& group = shared.below;
  const int64_t columns = call.problem.columns, blocks = ceil_div(columns, kBlockColumns);
  bool near = true;
  Tile<W> tile;
  for (int64_t r = 0; r < group.rows; r += kMostTileRows) {
    const int64_t rows = HWY_MIN(kMostTileRows, group.rows - r);
    place_tile<P, T>(call.problem, group.row + r, rows, 0, columns, tile);
    if constexpr (kHasPivot<P>) copy_few(shared.pivots + r, rows, tile.terms[0]);
    for (int64_t i = 0; i < rows; ++i) {
      DESCEND_UNROLL
      for (int k = 0; k < P::kSums; ++k) {
        double sum = 0;
        for (int64_t b = 0; b < blocks; ++b) sum += sum_of<P>(shared, group, b, r + i, k);
        tile.sums[k][i] = sum;
      }
    }
    finish_rows<P, false>(call.problem, tile);
    leave_statistics<P>(call.problem, group.row + r, tile);
    for (int64_t i = 0; i < rows; ++i) {
      for (int k = 0; k < kFoundTerms<P>; ++k) shared.terms[k][r + i] = tile.terms[k][i];
      shared.exact[r + i] = (tile.exact >> i & 1) != 0;
      if (!shared.exact[r + i]) continue;
      if constexpr (kHasPivot<P>) {
        if (!again) {
          shared.pivots[r + i] = tile.terms[P::kNearer - P::kNumbers][i];
          near = false;
          continue;
        }
      }
      double means[kMostMeans];
      exact_means<W>(call, group.row + r + i, means);
      for (int k = 0; k < kMostMeans; ++k) shared.means[k][r + i] = means[k];
    }
  }
  return near;
}

// The results of rows of a tile, of which row r of the group is the first.
template <class P, class T, class W = Wide<T>>
HWY_INLINE void map_shared(const RowCall<W>& call, const SharedRows<W>& shared, int64_t r, int64_t begin,
                           const Tile<W>& tile, const Targets<P>& to) {
  for (int64_t i = 0; i < tile.rows;) {
    int64_t until = i;
    while (until < tile.rows && !shared.exact[r + until]) ++until;
    map_some<P, T, false>(call.problem, tile, i, until, to);
    if (until < tile.rows) {
      double means[kMostMeans];
      for (int k = 0; k < kMostMeans; ++k) means[k] = shared.means[k][r + until];
      char* out[kOutputs<P>];
      to.rows(until, out);
      exact_results<W>(call, {shared.group.row + r + until, begin, begin + tile.columns}, means,
                       to.wanted() ? out : nullptr, tile.column_sums);
      ++until;
    }
    i = until;
  }
}

// The column sums of the stripe that ends before row r of the group, of columns [begin, begin + n).
template <class P, class T, class W = Wide<T>>
HWY_INLINE void leave_stripe(const RowCall<W>& call, const SharedRows<W>& shared, int64_t begin, int64_t n, int64_t r,
                             const Tile<W>& tile, double (&totals)[kSome<P::kColumnSums>][kBlockColumns]) {
  const RowSchedule& s = call.schedule;
  const bool first = r <= s.stripe, last = r == shared.group.rows;
  DESCEND_UNROLL
  for (int i = 0; i < P::kColumnSums; ++i) {
    const auto& to = call.problem.sums[i];
    if (!to.wanted()) continue;
    W* const wide = to.wide == nullptr ? nullptr : to.wide + begin;
    T* const own = to.own == nullptr ? nullptr : static_cast<T*>(to.own) + begin;
    W* const sums = tile.column_sums[i];
    if (to.slots != nullptr) {
      add_columns(sums, n, first && shared.group.row == 0, to.slots + begin);
    } else if (first && last) {
      write_columns<T>(sums, n, wide, own, s.streams);
    } else {
      add_columns(sums, n, first, totals[i]);
      if (last) write_columns<T>(&totals[i][0], n, wide, own, s.streams);
    }
  }
}

// n columns, a block at most.
template <class P, class T, class W = Wide<T>>
HWY_INLINE void results_of(const RowCall<W>& call, const SharedRows<W>& shared, int64_t begin, int64_t n) {
  const RowProblem<W>& p = call.problem;
  const RowSchedule& s = call.schedule;
  const RowGroup &group = shared.group, &below = shared.below;
  constexpr int64_t kPage = 4096;
  HWY_ALIGN W room[kSome<P::kParameters> * kBlockColumns];
  alignas(kPage) char sums[P::kColumnSums * kBlockColumns * sizeof(W) + kPage];
  HWY_ALIGN double totals[kSome<P::kColumnSums>][kBlockColumns];
  // At the page offset of the inputs.
  const int64_t offset =
      reinterpret_cast<intptr_t>(p.in[0].data + begin * static_cast<int64_t>(sizeof(T))) % kPage / 64 * 64;
  const bool has_output = p.out.data != nullptr;
  constexpr int64_t kStaged = kOutputs<P> == 1 ? P::kRowsMapped * kBlockColumns + 64 * kLineElements<T> : 0;
  Results<P, T, kStaged> results(targets_of<P, T>(p, begin), n, s);
  Tile<W> tile, next;
  place_parameters<P, T>(p, begin, n, room, whole_packs<W>(n), tile.parameters);
  tile.streams = s.streams;
  tile.in_lines = s.in_lines;
  DESCEND_UNROLL
  for (int i = 0; i < P::kColumnSums; ++i) {
    tile.column_sums[i] = reinterpret_cast<W*>(sums + offset) + i * kBlockColumns;
  }
  DESCEND_UNROLL
  for (int i = 0; i < P::kParameters; ++i) next.parameters[i] = tile.parameters[i];
  for (int64_t r = 0; r < group.rows;) {
    // Tiles end where stripes do.
    const int64_t in_stripe = r % s.stripe;
    if (in_stripe == 0) {
      DESCEND_UNROLL
      for (int i = 0; i < P::kColumnSums; ++i) clear_sums(tile.column_sums[i], n);
    }
    const int64_t most = s.in_lines ? 1 : P::kRowsMapped;  // each row has its own first line
    const int64_t rows = HWY_MIN(most, HWY_MIN(group.rows - r, s.stripe - in_stripe));
    place_tile<P, T>(p, group.row + r, rows, begin, n, tile);
    MaskCursor mask(p.mask, group.row + r);
    place_mask<P>(mask, begin, tile);
    bool exact = false;
    for (int64_t i = 0; i < rows; ++i) {
      DESCEND_UNROLL
      for (int k = 0; k < kFoundTerms<P>; ++k) tile.terms[k][i] = shared.terms[k][r + i];
      exact = exact || shared.exact[r + i];
    }
    if (s.ahead != 0 && below.rows == 0) {
      place_prefetch<P, T>(call, group, r, rows, n, tile);
      tile.prefetch.maps = true;
    }
    const int64_t rows_below = HWY_MAX(int64_t{0}, HWY_MIN(below.rows - r, rows));
    if (rows_below > 0) place_below<P, T>(call, shared, r, rows_below, begin, n, next);
    const Targets<P> to = has_output ? results.from(group.row + r) : Targets<P>();
    if (rows_below == rows && !exact && has_output) {
      step_rows<P, T>(next, tile, to);
    } else {
      map_shared<P, T>(call, shared, r, begin, tile, to);
      if (rows_below > 0) sum_rows<P, T, false>(next);
    }
    if (has_output) results.written(group.row + r, rows);
    if (rows_below > 0) keep_sums<P>(shared, begin / kBlockColumns, r, next);
    r += rows;
    if (r % s.stripe == 0 || r == group.rows) {
      leave_stripe<P, T>(call, shared, begin, n, r, tile, totals);
    }
  }
  results.finish(group.row + group.rows);
}

template <class P, class T, class W = Wide<T>>
void shared_results(const RowCall<W>& call, const SharedRows<W>& shared, int64_t begin, int64_t n) {
  const int64_t piece = kIsForward<P> || shared.below.rows > 0 ? kBlockColumns : kBlockColumns / 2;
  for (int64_t c = 0; c < n; c += piece) {
    results_of<P, T>(call, shared, begin + c, HWY_MIN(piece, n - c));
  }
}

template <class P, class T>
constexpr RowCounts counts_of() {
  return {.inputs = P::kInputs,
          .outputs = kOutputs<P>,
          .parameters = P::kParameters,
          .numbers = P::kNumbers,
          .scalars = P::kScalars,
          .row_sums = P::kSums,
          .column_sums = P::kColumnSums,
          .statistics = P::kStatistics,
          .together = P::kRowsMapped,
          .at_once = kColumnsAtOnce<P, T>,
          .has_pivot = kMovesPivot<P>,
          .takes_totals = kTakesTotals<P>,
          .masks_results = kHasMask<P>,
          .keeps = kKeeps<P>};
}

template <class P, class T>
RowKernels<Wide<T>> row_kernels() {
  if constexpr (kKeeps<P>) {
    return {.counts = counts_of<P, T>(),
            .rows = run_rows<P, T>,
            .share_parameters = nullptr,
            .find_pivots = nullptr,
            .block_sums = nullptr,
            .find_terms = nullptr,
            .results = nullptr};
  } else {
    return {.counts = counts_of<P, T>(),
            .rows = run_rows<P, T>,
            .share_parameters = share_parameters<P, T>,
            .find_pivots = shared_pivots<P, T>,
            .block_sums = block_sums<P, T>,
            .find_terms = shared_terms<P, T>,
            .results = shared_results<P, T>};
  }
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
