// How one thread walks over rows, with the loops of an operator: tile by tile, as the schedule says.
#pragma once

#include "kernels/rows/columns-inl.h"
#include "kernels/rows/engine.h"
#include "kernels/rows/kept-inl.h"
#include "kernels/rows/narrow-inl.h"
#include "kernels/rows/prefetch-inl.h"
#include "kernels/rows/results-inl.h"
#include "kernels/rows/stage-inl.h"
#include "kernels/rows/sum_columns-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// The rows whose pivot was far off, once more from one that is near.
template <class P, class T, bool kShort, class W = Wide<T>>
HWY_NOINLINE void sum_nearer(const RowProblem<W>& p, int64_t row, Tile<W>& tile) {
  for (int64_t r = 0; r < tile.rows; ++r) {
    if ((tile.exact >> r & 1) == 0) continue;
    Tile<W> one;
    place_tile<P, T>(p, row + r, 1, 0, p.columns, one);
    for (int i = 0; i < P::kParameters; ++i) one.parameters[i] = tile.parameters[i];
    one.terms[0][0] = tile.terms[P::kNearer - P::kNumbers][r];
    sum_rows<P, T, kShort>(one);
    finish_rows<P, kShort>(p, one);
    for (int i = 0; i < kFoundTerms<P>; ++i) tile.terms[i][r] = one.terms[i][0];
    if (one.exact == 0) tile.exact &= ~(uint64_t{1} << r);
  }
}

// The terms of a tile that are results.
template <class P, class W>
HWY_INLINE void leave_statistics(const RowProblem<W>& p, int64_t row, const Tile<W>& tile) {
  DESCEND_UNROLL
  for (int i = 0; i < P::kStatistics; ++i) {
    if (p.statistics[i] != nullptr) {
      copy_few(tile.terms[kFoundTerms<P> - P::kStatistics + i], tile.rows, p.statistics[i] + row);
    }
  }
}

// Of a tile that begins with row `row`; summed: its sums are there.
template <class P, class T, bool kShort, class W = Wide<T>>
HWY_INLINE void find_terms(const RowProblem<W>& p, int64_t row, Tile<W>& tile, bool summed) {
  if constexpr (kKeeps<P>) {
    keep_rows<P, T>(p, tile);
  } else if (!summed) {
    sum_rows<P, T, kShort>(tile);
  }
  finish_rows<P, kShort>(p, tile);
  if constexpr (kMovesPivot<P>) {
    if (HWY_UNLIKELY(tile.exact != 0)) sum_nearer<P, T, kShort>(p, row, tile);
  }
  leave_statistics<P>(p, row, tile);
}

// Where the second pass writes the results of a tile: to their place, or to a stage, from which 4 KB at a time are
// stored past the caches. (They are not moved at once, since what was just written cannot be read yet.) The stage has
// room for the rows that wait and those of a tile: so many elements. 0: there is none.
template <class P, class T, int64_t kElements>
class Results {
 public:
  HWY_INLINE Results(const Targets<P>& to, int64_t columns, const RowSchedule& s)
      : to_(to), columns_(columns), staged_(kHasStage && s.staged), flushes_(s.staged || s.streams) {
    bool dense = true;
    for (int o = 0; o < kOutputs<P>; ++o) dense = dense && belonging(o, 0).stride == columns;
    row_room_ = dense ? columns : ceil_div(columns, kLineElements<T>) * kLineElements<T>;
  }

  // Of the rows from this one on.
  HWY_INLINE Targets<P> from(int64_t row) {
    if constexpr (kHasStage) {
      if (staged_) {
        Targets<P> staged;
        DESCEND_UNROLL
        for (int o = 0; o < kOutputs<P>; ++o) {
          const Rows<T> rows = stages_[o].rows(belonging(o, row - waiting_), columns_);
          staged.at[o] = stream_of(Rows<T>{rows.row(waiting_), rows.stride});
        }
        return staged;
      }
    }
    return to_.from(row);
  }

  // `rows` rows from this one on are written.
  HWY_INLINE void written(int64_t row, int64_t rows) {
    if constexpr (kHasStage) {
      if (!staged_) return;
      waiting_ += rows;
      if (waiting_ * row_room_ >= kWaiting) move_on(row + rows);
    }
  }

  // All rows above this one are written.
  HWY_INLINE void finish(int64_t row) {
    if constexpr (kHasStage) {
      if (waiting_ > 0) move_on(row);
      if (staged_) {
        for (auto& stage : stages_) stage.finish();
      }
    }
    if (flushes_) flush_streams();
  }

 private:
  static constexpr int64_t kWaiting = 4096 / sizeof(T);  // elements
  // In double it would take much of a thread's stack.
  static constexpr bool kHasStage = sizeof(T) < sizeof(double) && kElements > 0;

  HWY_INLINE Rows<T> belonging(int output, int64_t row) const {
    const Stream& to = to_.at[output];
    return {reinterpret_cast<T*>(to.row(row)), to.stride / static_cast<int64_t>(sizeof(T))};
  }

  HWY_INLINE void move_on(int64_t end) {
    for (int o = 0; o < kOutputs<P>; ++o) stages_[o].stream(belonging(o, end - waiting_), waiting_, columns_);
    waiting_ = 0;
  }

  const Targets<P> to_;
  int64_t columns_, row_room_;  // what a row takes of the stage
  bool staged_, flushes_;
  int64_t waiting_ = 0;  // rows
  Stage<T, kHasStage ? kElements : 1> stages_[kOutputs<P>];
};

// The second pass over rows [first, last) of a tile whose results go to `to`.
template <class P, class T, bool kShort, class W = Wide<T>>
HWY_INLINE void map_some(const RowProblem<W>&, const Tile<W>& tile, int64_t first, int64_t last, const Targets<P>& to) {
  if (first == last) return;
  if (to.wanted()) {
    if constexpr (kShort && kHasSingle<P> && !kHasNarrow<T>) {
      if (tile.columns == 1) return map_single_rows<P, T>(tile, first, last, to.from(first));
    }
    if constexpr (kShort && kStandsAlone<P>) {
      if (tile.dense) return map_dense_rows<P, T>(tile, first, last, to.at[0].row(first));
    }
    if constexpr (kShort) {
      if (maps_by_columns<P, T>(tile.columns)) return map_short_rows<P, T>(tile, first, last, to.from(first));
    }
    return map_rows<P, T>(tile, first, last, 0, tile.columns, to.from(first));
  }
  // Where results are not wanted, they go to a few lines.
  HWY_ALIGN T unused[kRunColumns<W>];
  Targets<P> nowhere;
  for (Stream& out : nowhere.at) out = {reinterpret_cast<char*>(unused), 0};
  for (int64_t r = first; r < last; ++r) {
    for (int64_t c = 0; c < tile.columns; c += kRunColumns<W>) {
      map_rows<P, T>(tile, r, r + 1, c, HWY_MIN(c + kRunColumns<W>, tile.columns), nowhere);
    }
  }
}

template <class P, class T, bool kShort, class W = Wide<T>>
  requires kKeeps<P>
HWY_INLINE void map_some(const RowProblem<W>& p, const Tile<W>& tile, int64_t first, int64_t last,
                         const Targets<P>& to) {
  if (first == last) return;
  const auto map = tile.streams ? map_kept_rows<P, T, true> : map_kept_rows<P, T, false>;
  map(p, tile, first, last, to.at[0]);
}

// The same, rows that must be in double by themselves; the tile begins with row `row`.
template <class P, class T, bool kShort, class W = Wide<T>>
HWY_INLINE void map_tile(const RowCall<W>& call, int64_t row, const Tile<W>& tile, int64_t first, int64_t last,
                         const Targets<P>& to) {
  for (;; ++first) {
    int64_t until = last;
    if (HWY_UNLIKELY(tile.exact != 0)) {
      for (until = first; until < last && (tile.exact >> until & 1) == 0;) ++until;
    }
    map_some<P, T, kShort>(call.problem, tile, first, until, to);
    if (HWY_LIKELY(until == last)) return;
    first = until;
    char* out[kOutputs<P>];
    to.rows(first, out);
    exact_results<W>(call, {row + first, 0, tile.columns}, nullptr, to.wanted() ? out : nullptr, tile.column_sums);
  }
}

// Prefetches `count` rows.
template <class P, class T, class W = Wide<T>>
HWY_INLINE void prefetch_rows(const RowProblem<W>& p, int64_t row, int64_t count) {
  const int64_t row_bytes = p.columns * static_cast<int64_t>(sizeof(T));
  DESCEND_UNROLL
  for (int i = 0; i < P::kInputs; ++i) {
    const bool dense = p.in[i].stride == row_bytes;
    const int64_t bytes = dense ? count * row_bytes : row_bytes;
    for (int64_t r = row; r < row + count; r += dense ? count : 1) {
      for (int64_t b = 0; b < bytes; b += 64) prefetch_distant(p.in[i].row(r) + b);
    }
  }
}

// What is prefetched while the rows of a tile are read.
template <class P, class T, class W = Wide<T>>
HWY_INLINE void place_foresight(const RowProblem<W>& p, const RowSchedule& s, Prefetch& prefetch) {
  if (s.ahead == 0) return;
  const int64_t row_bytes = p.columns * static_cast<int64_t>(sizeof(T));
  prefetch.inside = HWY_MIN(s.ahead, row_bytes);
  prefetch.in_order = s.in_order && s.in_step;
  // Where results are stored through the caches, to prefetch more than the next tile slows the stores down.
  const int64_t tiles_ahead = s.streams || s.staged ? ceil_div(s.ahead, row_bytes) : 1;
  DESCEND_UNROLL
  for (int i = 0; i < P::kInputs; ++i) {
    prefetch.beyond[i] = tiles_ahead * s.tile * p.in[i].stride + prefetch.inside - row_bytes;
  }
}

// Whether the rows of a tile, inputs and results, are mapped as one.
template <class P, class T, class W = Wide<T>>
HWY_INLINE bool are_dense(const RowProblem<W>& p, const RowSchedule& s) {
  const int64_t row_bytes = p.columns * static_cast<int64_t>(sizeof(T));
  const bool is_short =
      p.columns < kLanes<W> || (row_bytes <= kDenseBytes && (s.staged || !maps_by_columns<P, T>(p.columns)));
  bool dense = (kKeeps<P> ? p.columns <= kBlockColumns : is_short) && s.tile * p.columns <= kDenseElements &&
               p.out.data != nullptr && p.out.stride == row_bytes;
  for (int i = 0; i < P::kInputs; ++i) dense = dense && p.in[i].stride == row_bytes;
  return dense;
}

// When short rows are prefetched, and how many rows ahead. Long ones are in the first pass (place_foresight).
struct RowsAhead {
  bool in_map = false;      // while the tile before them is mapped
  bool in_sums = false;     // while that one is summed
  bool before_map = false;  // in between
  int64_t count = 0;
};

template <class P, class T>
HWY_INLINE RowsAhead rows_ahead(const RowSchedule& s, int64_t columns, bool dense) {
  RowsAhead found;
  found.in_map = kStandsAlone<P> && s.ahead != 0 && (dense || !maps_by_columns<P, T>(columns));
  found.in_sums = kPrefetchesInSums<T> && !kKeeps<P> && s.ahead != 0 && !found.in_map && columns >= 64;
  found.before_map = s.ahead != 0 && !found.in_map && !found.in_sums;
  const int64_t tile_bytes = s.tile * columns * static_cast<int64_t>(sizeof(T));
  // Before the map the next tile may have been summed already.
  found.count = (ceil_div(s.ahead, tile_bytes) + (found.in_map ? 0 : 1)) * s.tile;
  return found;
}

// The column sums of a thread's rows. A stripe of rows is added up in W; the stripes of a chunk are added in double, in
// the chunk's slot. So the number of threads does not change the sums.
template <class P, class W>
class ColumnSums {
 public:
  // `sums`: of each output `each` columns, for a stripe.
  HWY_INLINE ColumnSums(const RowProblem<W>& p, const RowSchedule& s, int64_t first, W* sums, int64_t each)
      : p_(p), s_(s), chunk_(first == 0 ? 0 : first / s.chunk), sums_(sums), each_(each) {}

  HWY_INLINE W* of(int sum) const { return sums_ + sum * each_; }

  // How many of the next `rows` rows there are before a stripe or a chunk ends. They are added next.
  HWY_INLINE int64_t until_boundary(int64_t rows) {
    if (in_stripe_ == 0) {
      DESCEND_UNROLL
      for (int i = 0; i < P::kColumnSums; ++i) clear_sums(of(i), p_.columns);
    }
    return HWY_MIN(rows, HWY_MIN(s_.stripe - in_stripe_, s_.chunk - in_chunk_));
  }

  // They are added; `ends`: they are the thread's last.
  HWY_INLINE void added(int64_t rows, bool ends) {
    in_stripe_ += rows;
    in_chunk_ += rows;
    const bool chunk_ends = in_chunk_ == s_.chunk || ends;
    if (in_stripe_ == s_.stripe || chunk_ends) {
      DESCEND_UNROLL
      for (int i = 0; i < P::kColumnSums; ++i) {
        double* const slots = p_.sums[i].slots;
        if (slots != nullptr) add_columns(of(i), p_.columns, in_chunk_ == in_stripe_, slots + chunk_ * p_.columns);
      }
      in_stripe_ = 0;
    }
    if (chunk_ends) {
      ++chunk_;
      in_chunk_ = 0;
    }
  }

 private:
  const RowProblem<W>& p_;
  const RowSchedule& s_;
  int64_t chunk_, in_chunk_ = 0, in_stripe_ = 0;
  W* sums_;
  int64_t each_;
};

// Rows [first, last), of gradients whole chunks. Short rows are compiled apart: what is done once for a tile, or for a
// call, is most of what they take.
template <class P, class T, bool kShort>
HWY_NOINLINE void walk(const RowCall<Wide<T>>& call, int64_t first, int64_t last) {
  using W = Wide<T>;
  constexpr int64_t kColumns = !kShort ? kStripeColumns : kIsForward<P> ? kBlockColumns : kRunColumns<W>;
  const RowProblem<W>& p = call.problem;
  const RowSchedule& s = call.schedule;
  const int64_t each = whole_packs<W>(p.columns);
  // The sums of a thread and its parameters, which are used as they are where they need not be widened.
  constexpr int kArrays = int{P::kColumnSums} + (std::is_same_v<T, W> ? 0 : int{P::kParameters});
  HWY_ALIGN W sums[kSome<kArrays> * kColumns];
  Tile<W> tiles[2];
  // A tile, or two of the longest rows: of two results these would take much of a thread's stack.
  constexpr int64_t kStaged = kShort ? kTileBytes / sizeof(T) : kOutputs<P> == 1 ? 2 * kColumns : 0;
  Results<P, T, kStaged == 0 ? 0 : kStaged + 64 * kLineElements<T>> results(targets_of<P, T>(p, 0), p.columns, s);
  const W* parameters[kSome<P::kParameters>];
  const bool shared = call.parameters != nullptr;
  place_parameters<P, T>(p, 0, p.columns, shared ? call.parameters : sums + P::kColumnSums * each, each, parameters,
                         shared);
  const bool dense = kShort && kStandsAlone<P> && are_dense<P, T>(p, s);
  const RowsAhead ahead = kShort ? rows_ahead<P, T>(s, p.columns, dense) : RowsAhead();
  ColumnSums<P, W> column_sums(p, s, first, sums, each);
  HWY_ALIGN W on_stack[kKeeps<P> ? kKeptColumns + kPackLanes<W> : 1];
  W* const room = kKeeps<P> && p.columns > kKeptColumns ? kept_room<W>() : nullptr;
  for (Tile<W>& tile : tiles) {
    DESCEND_UNROLL
    for (int i = 0; i < P::kParameters; ++i) tile.parameters[i] = parameters[i];
    DESCEND_UNROLL
    for (int i = 0; i < P::kColumnSums; ++i) tile.column_sums[i] = column_sums.of(i);
    tile.streams = s.streams;
    tile.in_lines = s.in_lines;
    tile.dense = dense;
    if constexpr (kKeeps<P>) {
      tile.kept = room != nullptr ? room : on_stack;
      tile.kept_columns = kept_columns_of<T>(p.columns, dense);
      tile.most_kept = p.columns <= kKeptColumns ? kKeptColumns : room != nullptr ? kKeptInRoom<W> : 0;
    }
    if (ahead.in_map) {
      tile.prefetch.maps = true;
      tile.prefetch.inside = p.columns * static_cast<int64_t>(sizeof(T));
      DESCEND_UNROLL
      for (int i = 0; i < P::kInputs; ++i) tile.prefetch.beyond[i] = ahead.count * p.in[i].stride;
    } else if (ahead.in_sums) {
      tile.prefetch.in_sums = true;
      DESCEND_UNROLL
      for (int i = 0; i < P::kInputs; ++i) tile.prefetch.beyond[i] = ahead.count * p.in[i].stride;
    } else if (!kShort) {
      place_foresight<P, T>(p, s, tile.prefetch);
    }
  }
  MaskCursor mask(p.mask, first);
  uint8_t mask_bytes[2][kReadsMask<P> && kShort ? kDenseElements : 1];
  const auto place = [&](int64_t row, Tile<W>& tile) HWY_ATTR {
    place_tile<P, T>(p, row, HWY_MIN(s.tile, last - row), 0, p.columns, tile);
    if (kReadsMask<P> && dense) {
      tile.mask_bytes = mask.tile(tile.rows, p.columns, mask_bytes[&tile - tiles]);
    } else {
      place_mask<P>(mask, 0, tile);
    }
    if constexpr (kMovesPivot<P>) find_pivots<P, T>(p, row, tile.rows, tile.terms[0]);
  };
  const bool has_output = p.out.data != nullptr;
  bool summed = false, finished = false;  // what is known of a tile
  place(first, tiles[0]);
  for (int64_t row = first, t = 0; row < last; ++t) {
    Tile<W>&tile = tiles[t % 2], &next = tiles[(t + 1) % 2];
    const int64_t end = row + tile.rows;
    if (!finished) find_terms<P, T, kShort>(p, row, tile, summed);
    summed = finished = false;
    if (end < last) {
      place(end, next);
      if (s.early) {
        find_terms<P, T, kShort>(p, end, next, false);
        finished = true;
      }
    }
    if (ahead.before_map && row + ahead.count + s.tile <= last) {
      prefetch_rows<P, T>(p, row + ahead.count, s.tile);
    }
    const Targets<P> to = has_output ? results.from(row) : Targets<P>();
    // A stripe or a chunk may end within a tile.
    for (int64_t r = 0; r < tile.rows;) {
      const int64_t taken = column_sums.until_boundary(tile.rows - r);
      const bool in_step = !kShort && s.in_step && has_output && end < last && tile.exact == 0 && taken == tile.rows &&
                           next.rows == tile.rows;
      if constexpr (!kShort) {
        if (in_step) step_rows<P, T>(next, tile, to);
        summed = summed || in_step;
      }
      if (!in_step) map_tile<P, T, kShort>(call, row, tile, r, r + taken, to);
      r += taken;
      column_sums.added(taken, row + r == last);
    }
    if (has_output) results.written(row, tile.rows);
    row = end;
  }
  results.finish(last);
}

// A block of the parameters of long rows, for all threads.
template <class P, class T, class W = Wide<T>>
void share_parameters(const RowCall<W>& call, int64_t block) {
  const RowProblem<W>& p = call.problem;
  const int64_t begin = block * kBlockColumns, n = HWY_MIN(kBlockColumns, p.columns - begin);
  const int64_t each = whole_packs<W>(p.columns);
  const W* parameters[kSome<P::kParameters>];
  place_parameters<P, T>(p, begin, n, call.parameters + begin, each, parameters);
}

template <class P, class T, class W = Wide<T>>
void run_rows(const RowCall<W>& call, int64_t first, int64_t last) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kHasNarrow<T>) {
    if (call.problem.columns <= kMostNarrow) return walk_narrow<P, T>(call, first, last);
  }
#endif
  if constexpr (!kKeeps<P>) {
    if (!call.schedule.is_short) return walk<P, T, false>(call, first, last);
  }
  walk<P, T, true>(call, first, last);
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
