// The backward pass of a norm over rows, in two passes over each group of rows: their sums, then dx and the column
// sums. Norm says which norm: RmsNorm or LayerNorm.
#if defined(DESCEND_KERNELS_NORM_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DESCEND_KERNELS_NORM_BACKWARD_INL_H_
#undef DESCEND_KERNELS_NORM_BACKWARD_INL_H_
#else
#define DESCEND_KERNELS_NORM_BACKWARD_INL_H_
#endif

#include <limits>

#include "kernels/fold_rows-inl.h"
#include "kernels/norm_backward.h"
#include "kernels/pack-inl.h"
#include "kernels/split_pack-inl.h"
#include "kernels/spread-inl.h"
#include "kernels/stage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Rows of a group at most: they share each load of gamma and of the column sums.
inline constexpr int kMaxGroup = kHasVectors ? 2 : 1;

// Rows of a group otherwise, where columns are not cut. Of 16 bits one row of a layer norm fills the registers; with
// AVX2, which has half as many as AVX-512, so does one of an RMS norm.
template <class Norm, class T>
inline constexpr int kGroupOf =
    sizeof(T) == 2 && (HWY_TARGET == HWY_AVX2 || (Norm::kCentered && HWY_TARGET != HWY_AVX3)) ? 1 : kMaxGroup;

// For the row sums each row takes one or two packs of accumulators: as many rows as the registers hold.
struct RmsNorm {
  static constexpr bool kCentered = false;
  static constexpr int kSumsAbreast = kMaxGroup;
};
struct LayerNorm {
  static constexpr bool kCentered = true;
  static constexpr int kSumsAbreast = HWY_TARGET == HWY_AVX3 ? kMaxGroup : 1;
};

// What a column takes in a cache: its elements of both inputs, gamma and its sums.
template <class Norm, class T>
inline constexpr int64_t kColumnBytes = 2 * sizeof(T) + (Norm::kCentered ? 3 : 2) * sizeof(Wide<T>);

// Columns whose products are summed in one chain of float: a short one loses little to rounding. The chains are added
// in double.
template <class W>
inline constexpr int64_t kRun = 8 * static_cast<int64_t>(kPackLanes<W>);

// Columns that the first pass over a group of rows reads before the second over the group above has its turn.
template <class T, int kRows>
inline constexpr int64_t kTurn = kRows == 1 ? 512 / static_cast<int64_t>(sizeof(T)) : 64;

enum class Output { kNone, kPlain, kStream };

// What results past the caches are compiled as.
inline constexpr Output kStreamed = kHasVectors ? Output::kStream : Output::kPlain;

// Rows that are worked on side by side.
template <class Norm, class T, int kRows>
struct RowSet {
  using W = Wide<T>;
  const T* dy[kRows];
  const T* x[kRows];
  Vector<W> mean[kRows], rstd[kRows];

  HWY_INLINE RowSet() {}
  HWY_INLINE RowSet(const NormBackward<T>& p, int64_t row) {
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) {
      dy[r] = p.dy.row(row + r);
      x[r] = p.x.row(row + r);
      if constexpr (Norm::kCentered) mean[r] = splat(p.mean[row + r]);
      rstd[r] = splat(p.rstd[row + r]);
    }
  }

  HWY_INLINE Vector<W> centered(Vector<W> v, int r) const {
    if constexpr (Norm::kCentered) return hn::Sub(v, mean[r]);
    return v;
  }
};

// Adds the products of one pack of columns to the rows' sums.
template <class Norm, bool kTame, class T, int kRows, class Extent>
HWY_INLINE void add_products(Extent extent, const RowSet<Norm, T, kRows>& set, const Wide<T>* gamma, int64_t c,
                             Pack<Wide<T>>* gx, Pack<Wide<T>>* g) {
  constexpr bool kOnce = !Norm::kCentered;  // layer norm's arithmetic needs the registers
  SplitPack<T, Extent, kOnce> dy[kRows], x[kRows];
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) {
    dy[r] = {extent, set.dy[r] + c};
    x[r] = {extent, set.x[r] + c};
  }
  DESCEND_UNROLL
  for (size_t k = 0; k < kPackVectors<Wide<T>>; ++k) {
    if (!reaches<T>(extent, k)) break;
    const auto gamma_k = load_beside<T>(extent, gamma + c, k);
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const auto g_k = hn::Mul(dy[r][k], gamma_k);
      auto xc = set.centered(x[r][k], r);
      if constexpr (!kTame) xc = hn::Mul(xc, set.rstd[r]);
      // Beyond the row an infinite mean or rstd would make NaN of 0.
      if constexpr (Norm::kCentered || !kTame) xc = in_row<T>(extent, xc, k);
      gx[r].v[k] = hn::MulAdd(g_k, xc, gx[r].v[k]);
      if constexpr (Norm::kCentered) g[r].v[k] = hn::Add(g[r].v[k], g_k);
    }
  }
}

// How many elements further on lies what is asked for; 0: nothing is.
struct Distance {
  int64_t dy = 0, x = 0;
};

// What a pass asks for while it reads a group of rows: what comes a little later in the rows or, near their
// end, in what is read after them, which lies `below` from their first column.
template <class T, int kRows>
class Foresight {
 public:
  HWY_INLINE Foresight(Ask ask, int64_t columns, Distance below)
      : columns_(columns), ahead_(ask == Ask::kNothing ? 0 : HWY_MIN(kAhead, columns)), below_(below) {}

  // How many groups of rows below lies what is best asked for: more than one where rows are short. (Not where results
  // are stored as usual, which so many requests hold up.)
  static HWY_INLINE int64_t groups_ahead(int64_t columns) { return ceil_div(kAhead, columns); }

  HWY_INLINE Distance at(int64_t c) const {
    if (c + ahead_ < columns_) return {ahead_, ahead_};
    if (ahead_ == 0) return {};
    return {below_.dy + ahead_ - columns_, below_.x + ahead_ - columns_};
  }

 private:
  static constexpr int64_t kAhead = kAheadBytes / (kRows * static_cast<int64_t>(sizeof(T)));

  int64_t columns_, ahead_;
  Distance below_;
};

// Asks for what lies in the distance of a pack of columns of rows.
template <class Norm, class T, int kRows>
HWY_INLINE void prefetch_step(const RowSet<Norm, T, kRows>& set, int64_t c, Distance ahead) {
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) {
    prefetch_pack<prefetch_distant>(set.dy[r] + c, ahead.dy);
    prefetch_pack<prefetch_distant>(set.x[r] + c, ahead.x);
  }
}

// Of columns [begin, end).
template <class Norm, class T, int kRows>
HWY_INLINE void prefetch_ahead(const RowSet<Norm, T, kRows>& set, int64_t begin, int64_t end, Distance ahead) {
  if (ahead.dy == 0) return;
  for (int64_t c = begin; c < end; c += kPackLanes<Wide<T>>) prefetch_step(set, c, ahead);
}

template <class T>
HWY_INLINE Distance rows_below(const NormBackward<T>& p, int64_t rows) {
  return {rows * p.dy.stride, rows * p.x.stride};
}

// The sums of a few rows in the making: a run of columns after the other.
template <class Norm, bool kTame, int kRows, class T>
class SumsOf {
  using W = Wide<T>;

 public:
  HWY_INLINE SumsOf() {}

  HWY_INLINE void start(const NormBackward<T>& p, int64_t row) {
    set_ = RowSet<Norm, T, kRows>(p, row);
    gamma_ = p.gamma.wide;
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) {
      gx_[r] = g_[r] = zero_lanes<W>();
      total_[r] = {};
    }
  }

  HWY_INLINE void start_run() {
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) run_gx_[r] = run_g_[r] = zero_pack<W>();
  }

  // Adds columns of a run. Of the rows, those in the distance are asked for.
  HWY_INLINE void add(int64_t begin, int64_t end, Distance ahead = {}) {
    int64_t c = begin;
    for (; c + kStep <= end; c += kStep) {
      if (ahead.dy != 0) prefetch_step(set_, c, ahead);
      add_products<Norm, kTame>(Full(), set_, gamma_, c, run_gx_, run_g_);
    }
    if (c < end) add_products<Norm, kTame>(Part{static_cast<size_t>(end - c)}, set_, gamma_, c, run_gx_, run_g_);
  }

  HWY_INLINE void end_run(int64_t end) {
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) {
      add_lanes(run_gx_[r], gx_[r]);
      if constexpr (Norm::kCentered) add_lanes(run_g_[r], g_[r]);
    }
    if (end % kBlock == 0) end_block();
  }

  HWY_INLINE void finish(int64_t end, RowSums* sums) {
    if (end % kBlock != 0) end_block();
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) sums[r] = total_[r];
  }

 private:
  static constexpr int64_t kStep = kPackLanes<W>;

  HWY_INLINE void end_block() {
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) {
      total_[r].gx += fold(gx_[r]);
      gx_[r] = zero_lanes<W>();
      if constexpr (Norm::kCentered) {
        total_[r].g += fold(g_[r]);
        g_[r] = zero_lanes<W>();
      }
    }
  }

  RowSet<Norm, T, kRows> set_;
  const W* gamma_;
  Pack<W> run_gx_[kRows], run_g_[kRows];
  DoubleLanes<W> gx_[kRows], g_[kRows];
  RowSums total_[kRows];
};

// Not inlined, as apply_rows is not: the compiler would take minutes over what it becomes a part of.
template <class Norm, bool kTame, int kRows, class T>
HWY_NOINLINE void row_sums(const NormBackward<T>& p, int64_t row, Ask ask, Distance below, RowSums* sums) {
  constexpr int64_t kStep = kRun<Wide<T>>;
  const Foresight<T, kRows> foresight(ask, p.columns, below);
  SumsOf<Norm, kTame, kRows, T> of;
  of.start(p, row);
  for (int64_t c = 0; c < p.columns; c += kStep) {
    const int64_t end = HWY_MIN(c + kStep, p.columns);
    of.start_run();
    of.add(c, end, foresight.at(c));
    of.end_run(end);
  }
  of.finish(p.columns, sums);
}

template <class Norm, class T>
HWY_INLINE RowTerms<Wide<T>> terms_of(const NormBackward<T>& p, int64_t row, const RowSums& sums) {
  return row_terms(p, row, sums, [&]() HWY_ATTR {
    RowSums wild;
    row_sums<Norm, false, 1>(p, row, Ask::kNothing, {}, &wild);
    return wild;
  });
}

template <class T>
bool are_tame(const NormBackward<T>& p, int64_t row, int64_t rows) {
  bool tame = true;
  for (int64_t r = 0; r < rows; ++r) tame = tame && is_tame(p.rstd[row + r]);
  return tame;
}

// The first pass over a group. What comes after it lies `below` from its last rows.
template <class Norm, int kGroup, class T>
HWY_INLINE void group_sums(const NormBackward<T>& p, int64_t row, int64_t rows, RowSums* sums, Ask ask = Ask::kNothing,
                           Distance below = {}) {
  constexpr int kSet = HWY_MIN(kGroup, Norm::kSumsAbreast);
  int64_t r = 0;
  if (are_tame(p, row, rows)) {
    for (; r + kSet <= rows; r += kSet) {
      row_sums<Norm, true, kSet>(p, row + r, ask, r + kSet < rows ? rows_below(p, kSet) : below, sums + r);
    }
  }
  for (; r < rows; ++r) {
    const Distance next = r + 1 < rows ? rows_below(p, 1) : below;
    if (is_tame(p.rstd[row + r])) {
      row_sums<Norm, true, 1>(p, row + r, ask, next, sums + r);
    } else {
      row_sums<Norm, false, 1>(p, row + r, ask, next, sums + r);
    }
  }
}

// Column sums of a stripe, in the type of the arithmetic and in split packs. Where gamma is not so yet, it is made so.
template <class Norm, class T, int64_t kColumns>
class Columns {
 public:
  using W = Wide<T>;
  HWY_INLINE explicit Columns(NormBackward<T>& p) : columns_(p.columns) {
    if (sizeof(T) == 2 && p.gamma.own != nullptr) {
      for_each_pack<W>(0, columns_, [&](auto extent, int64_t c) HWY_ATTR {
        if constexpr (kFew) prefetch_pack<prefetch_distant>(p.gamma.own + c, columns_);  // of the next block
        store(Full(), load_split(extent, p.gamma.own + c), gamma_ + c);
      });
      p.gamma = {.wide = gamma_};
    } else if constexpr (kSplits<T>) {
      split_row(p.gamma.wide, columns_, gamma_);
      p.gamma = {.wide = gamma_};
    }
  }

  // Where a stripe is a group or little more, sums are not cleared, but what is there is left out until it was written.
  HWY_INLINE void clear() {
    if constexpr (kFew) {
      kept_ = hn::Zero(Tag<W>());
      return;
    }
    const size_t bytes = static_cast<size_t>(whole_packs<W>(columns_)) * sizeof(W);
    std::memset(dgamma, 0, bytes);
    if (Norm::kCentered) std::memset(dbeta, 0, bytes);
  }

  // The sums of all columns were.
  HWY_INLINE void written() {
    if constexpr (kFew) kept_ = hn::BitCast(Tag<W>(), hn::Not(hn::Zero(hn::RebindToUnsigned<Tag<W>>())));
  }

  // The sums so far at i, of one or the other.
  HWY_INLINE Vector<W> sums(const W* of, size_t i) const {
    const auto v = hn::Load(Tag<W>(), of + i);
    if constexpr (kFew) return hn::And(v, kept_);
    return v;
  }

  // To the slots.
  HWY_INLINE void add_to(const NormBackward<T>& p, bool fresh, int64_t place) {
    add_to(dgamma, p.dgamma.from(place), fresh);
    if (Norm::kCentered) add_to(dbeta, p.dbeta.from(place), fresh);
  }

  // The same of all rows there are, whose sums may be written where they end.
  HWY_INLINE void write_to(const NormBackward<T>& p, bool stream) {
    write_to(dgamma, p.dgamma, stream);
    if (Norm::kCentered) write_to(dbeta, p.dbeta, stream);
  }

  HWY_ALIGN W dgamma[kColumns];
  HWY_ALIGN W dbeta[Norm::kCentered ? kColumns : 1];

 private:
  static constexpr bool kFew = kColumns == kBlock;

  HWY_INLINE void add_to(W* sums, const ColumnSums<T>& to, bool fresh) {
    if (!to.wanted()) return;
    if constexpr (kSplits<T>) merge_row(sums, columns_);
    add_columns(sums, columns_, fresh, to.slots);
  }

  HWY_INLINE void write_to(W* sums, const ColumnSums<T>& to, bool stream) {
    if (!to.wanted()) return;
    if constexpr (kSplits<T>) merge_row(sums, columns_);
    leave_sums(sums, columns_, to, true, stream);
  }

  HWY_ALIGN W gamma_[sizeof(T) == 2 ? kColumns : 1];
  Vector<W> kept_;  // all bits or none
  int64_t columns_;
};

// dx of one vector, which is added to the column sums.
template <bool kTame, class Norm, class V>
HWY_INLINE V apply(V dy, V xc, V gamma, V rstd, V slope, V offset, V& dgamma, V& dbeta) {
  const V factor = kTame ? xc : hn::Mul(xc, rstd);
  const V scaled = kTame ? hn::Mul(dy, rstd) : dy;
  dgamma = hn::MulAdd(scaled, factor, dgamma);
  if constexpr (Norm::kCentered) dbeta = hn::Add(dbeta, dy);
  const V mean_part = Norm::kCentered ? hn::MulAdd(factor, slope, offset) : hn::Mul(factor, slope);
  const V difference = hn::MulSub(scaled, gamma, mean_part);
  return kTame ? difference : hn::Mul(rstd, difference);
}

// What the second pass knows of its rows; results go to those of `to`.
template <class Norm, Output kOutput, class T, int kRows>
struct ApplySet : RowSet<Norm, T, kRows> {
  T* dx[kRows];
  Vector<Wide<T>> slope[kRows], offset[kRows];

  HWY_INLINE ApplySet(const NormBackward<T>& p, int64_t row, const RowTerms<Wide<T>>* terms, const Rows<T>& to)
      : RowSet<Norm, T, kRows>(p, row) {
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if constexpr (kOutput != Output::kNone) dx[r] = to.row(r);
      slope[r] = splat(terms[r].slope);
      offset[r] = splat(terms[r].offset);
    }
  }
};

// dx and column sums of one pack of columns. A row's store must not come between the loads of the others: where rows
// are multiples of a page apart, the processor would hold these back.
template <bool kTame, class Norm, Output kOutput, class T, int kRows, class Extent, class Columns>
HWY_INLINE void apply_pack(Extent extent, const ApplySet<Norm, kOutput, T, kRows>& set, const Wide<T>* gamma, int64_t c,
                           Columns& columns) {
  using W = Wide<T>;
  SplitPack<T, Extent> dy[kRows], x[kRows];
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) {
    dy[r] = {extent, set.dy[r] + c};
    x[r] = {extent, set.x[r] + c};
  }
  DESCEND_UNROLL
  for (size_t pair = 0; pair < kVectorPairs<T>; ++pair) {
    Vector<W> result[kRows][2];
    DESCEND_UNROLL
    for (size_t i = 0; i < 2; ++i) {
      const size_t k = pair_vector<T>(pair, i);
      const size_t at = static_cast<size_t>(c) + k * kVectorLanes<W>;
      const auto gamma_k = load_beside<T>(extent, gamma + c, k);
      auto dgamma = columns.sums(columns.dgamma, at);
      auto dbeta = Norm::kCentered ? columns.sums(columns.dbeta, at) : dgamma;
      DESCEND_UNROLL
      for (int r = 0; r < kRows; ++r) {
        result[r][i] = apply<kTame, Norm>(dy[r][k], set.centered(x[r][k], r), gamma_k, set.rstd[r], set.slope[r],
                                          set.offset[r], dgamma, dbeta);
      }
      hn::Store(dgamma, Tag<W>(), columns.dgamma + at);
      if constexpr (Norm::kCentered) hn::Store(dbeta, Tag<W>(), columns.dbeta + at);
    }
    if constexpr (kOutput != Output::kNone) {
      constexpr Nan kNan = kTame ? Nan::kOfBfloat16 : Nan::kAny;  // a tame row has none
      DESCEND_UNROLL
      for (int r = 0; r < kRows; ++r) {
        store_split<kOutput == Output::kStream, kNan, true>(extent, result[r][0], result[r][1], set.dx[r] + c, pair);
      }
    }
  }
}

// What a pass asks for: what is read after its rows.
struct After {
  Ask ask = Ask::kNothing;
  Distance below = {};
};

// The first pass over a group that the second pass over another runs in step with.
struct NextSums {
  int64_t row;  // the group's first
  RowSums* sums;
};

// The second pass over a few rows and, in step with it, the first pass over so many others (kNext): reads, arithmetic
// and writes then run side by side, where one pass after the other would leave memory idle now and then. They take
// turns of a few columns, and the first pass does the asking: bursts of requests would hold up the second. Where there
// is none, the second asks, for what follows its own rows.
template <class Norm, bool kTame, Output kOutput, int kRows, bool kNext, class T, class Columns>
HWY_NOINLINE void apply_rows(const NormBackward<T>& p, int64_t row, const RowTerms<Wide<T>>* terms, const Rows<T>& to,
                             Columns& columns, const After& after, const NextSums& other = {}) {
  using W = Wide<T>;
  constexpr int64_t kStep = kPackLanes<W>, kColumns = kTurn<T, kRows>;
  constexpr int kSet = HWY_MIN(kRows, Norm::kSumsAbreast);
  static_assert(kRun<W> % kColumns == 0 && kColumns % kStep == 0);
  const ApplySet<Norm, kOutput, T, kRows> set(p, row, terms, to);
  SumsOf<Norm, true, kSet, T> next[kRows / kSet];
  if constexpr (kNext) {
    for (int i = 0; i < kRows / kSet; ++i) next[i].start(p, other.row + i * kSet);
  }
  const W* gamma = p.gamma.wide;
  const Foresight<T, kRows> foresight(after.ask, p.columns, after.below);
  const bool in_order = reads_in_order<T>(after.ask);
  const auto next_turn = [&](int64_t begin, int64_t end) DESCEND_INLINED {
    const Distance distance = foresight.at(begin);
    if (in_order) await_reads();
    DESCEND_UNROLL
    for (int i = 0; i < kRows / kSet; ++i) next[i].add(begin, end, distance);
  };
  for (int64_t c = 0; c < p.columns;) {
    const int64_t run_end = HWY_MIN(c + kRun<W>, p.columns);
    if constexpr (kNext) {
      DESCEND_UNROLL
      for (int i = 0; i < kRows / kSet; ++i) next[i].start_run();
    }
    while (c < run_end) {
      const int64_t end = HWY_MIN(c + kColumns, run_end);
      if constexpr (kNext) {
        next_turn(c, end);
      } else {
        prefetch_ahead(set, c, end, foresight.at(c));
      }
      for (; c + kStep <= end; c += kStep) apply_pack<kTame>(Full(), set, gamma, c, columns);
      if (c < end) {
        apply_pack<kTame>(Part{static_cast<size_t>(end - c)}, set, gamma, c, columns);
        c = end;
      }
    }
    if constexpr (kNext) {
      DESCEND_UNROLL
      for (int i = 0; i < kRows / kSet; ++i) next[i].end_run(run_end);
    }
  }
  columns.written();
  if constexpr (kNext) {
    for (int i = 0; i < kRows / kSet; ++i) next[i].finish(p.columns, other.sums + i * kSet);
  }
}

// The second pass over a group.
template <class Norm, Output kOutput, int kGroup, class T, class Columns>
HWY_INLINE void apply_group(const NormBackward<T>& p, int64_t row, int64_t rows, const RowTerms<Wide<T>>* terms,
                            const Rows<T>& to, Columns& columns, const After& after = {}) {
  if constexpr (kGroup > 1) {
    bool tame = rows == kGroup;
    for (int64_t r = 0; r < rows; ++r) tame = tame && terms[r].tame;
    if (tame) {
      apply_rows<Norm, true, kOutput, kGroup, false>(p, row, terms, to, columns, after);
      return;
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    const Rows<T> dx{to.row(r), to.stride};
    const After then{after.ask, r + 1 < rows ? rows_below(p, 1) : after.below};
    if (terms[r].tame) {
      apply_rows<Norm, true, kOutput, 1, false>(p, row + r, terms + r, dx, columns, then);
    } else {
      apply_rows<Norm, false, kOutput, 1, false>(p, row + r, terms + r, dx, columns, then);
    }
  }
}

// Where the second pass writes results, row after row: where they belong, or to a stage, from which some are moved on
// at a time. What was written just before could not be read at once. The stage has room for the rows that wait and
// those of a group or a batch, even where each has lines of its own.
template <class T>
class Results {
 public:
  HWY_INLINE Results(const NormBackward<T>& p, Stores stores) : dx_(p.dx), columns_(p.columns), stores_(stores) {}

  // Of the rows from this one on.
  HWY_INLINE Rows<T> from(int64_t row) {
    if (stores_ != Stores::kStaged) return belonging_from(row);
    const Rows<T> staged = stage_.rows(belonging_from(row - waiting_), columns_);
    return {staged.row(waiting_), staged.stride};
  }

  // `rows` rows from this one on are written.
  HWY_INLINE void written(int64_t row, int64_t rows) {
    if (stores_ != Stores::kStaged) return;
    waiting_ += rows;
    if (waiting_ * columns_ * static_cast<int64_t>(sizeof(T)) >= kWaitingBytes) move_on(row + rows);
  }

  // All rows above this one are written.
  HWY_INLINE void finish(int64_t row) {
    if (waiting_ > 0) move_on(row);
    stage_.finish();
    if (stores_ != Stores::kPlain) flush_streams();
  }

 private:
  static constexpr int64_t kWaitingBytes = int64_t{4} << 10;
  static constexpr int64_t kRoom = 2 * kStripeColumns + 64 * kLineElements<T>;  // two of the longest rows, or a batch

  Rows<T> belonging_from(int64_t row) const { return {dx_.row(row), dx_.stride}; }

  HWY_INLINE void move_on(int64_t end) {
    stage_.stream(belonging_from(end - waiting_), waiting_, columns_);
    waiting_ = 0;
  }

  Rows<T> dx_;
  int64_t columns_;
  Stores stores_;
  int64_t waiting_ = 0;  // rows
  Stage<T, kStages<T> ? kRoom : 1> stage_;
};

// Whether the second pass over a group is best in step with the first over the next: where they read memory, which
// would else be idle now and then; of near rows, where the first-level cache has room for both groups with all that is
// used beside them, or not even for one, and the registers do.
template <class Norm, int kGroup, class T>
bool go_in_step(const NormBackward<T>& p, bool near) {
  if (!near) return true;
  constexpr int64_t kRow = 2 * static_cast<int64_t>(sizeof(T)), kBeside = kColumnBytes<Norm, T> - kRow;
  const bool both_fit = p.columns * (2 * kGroup * kRow + kBeside) <= kFirstCacheRoom;
  const bool one_fits = p.columns * (kGroup * kRow + kBeside) <= kFirstCacheRoom / 2 * 3;
  return both_fit || !(one_fits || Norm::kCentered);
}

// Rows [first, last), group by group; first is a chunk's first.
template <class Norm, Output kOutput, int kGroup, class T>
HWY_INLINE void all_rows(NormBackward<T> p, int64_t first, int64_t last, const RowCut& cut, Stores stores) {
  const int64_t most = stripe_rows<T>(p.rows);  // of a stripe
  Columns<Norm, T, kStripeColumns> columns(p);
  Results<T> results(p, stores);
  RowSums sums[kGroup];
  RowTerms<Wide<T>> terms[kGroup];
  const int64_t groups = stores == Stores::kPlain ? 1 : Foresight<T, kGroup>::groups_ahead(p.columns);
  const Distance below = rows_below(p, groups * kGroup);
  const bool in_step = go_in_step<Norm, kGroup>(p, cut.near);
  bool known = kOutput == Output::kNone;  // whether the group's sums are known or not needed
  for (int64_t stripe = first; stripe < last;) {
    const int64_t chunk = stripe / cut.chunk;
    const int64_t stripe_end = HWY_MIN(HWY_MIN(stripe + most, (chunk + 1) * cut.chunk), last);
    columns.clear();
    for (int64_t row = stripe; row < stripe_end; row += kGroup) {
      const int64_t rows = HWY_MIN(int64_t{kGroup}, stripe_end - row);
      if (!known) group_sums<Norm, kGroup>(p, row, rows, sums, in_step ? Ask::kNothing : cut.ask, rows_below(p, rows));
      bool tame = true;
      for (int64_t r = 0; r < rows; ++r) {
        terms[r] = terms_of<Norm>(p, row + r, sums[r]);
        tame = tame && terms[r].tame;
      }
      if constexpr (kOutput != Output::kNone && kHasVectors) {
        known = in_step && row + 2 * kGroup <= last && tame && are_tame(p, row + kGroup, kGroup);
        if (known) {
          const After after{cut.ask, below};
          const NextSums next{row + kGroup, sums};
          apply_rows<Norm, true, kOutput, kGroup, true>(p, row, terms, results.from(row), columns, after, next);
          results.written(row, rows);
          continue;
        }
      }
      apply_group<Norm, kOutput, kGroup>(p, row, rows, terms, results.from(row), columns);
      results.written(row, rows);
    }
    columns.add_to(p, stripe == chunk * cut.chunk, chunk * p.columns);
    stripe = stripe_end;
  }
  results.finish(last);
}

// ---- Short rows, a batch at a time: what a row costs beside its columns, the folds and the terms, is shared.

// Columns of a short row. Of longer rows the columns matter more, and they are better read in order; where they come
// from the caches, the order matters less, unless 16 bits of a layer norm fill the registers.
template <class T>
inline constexpr int64_t kBatchColumns = 512 / static_cast<int64_t>(sizeof(T));
template <class Norm, class T>
inline constexpr int64_t kNearBatchColumns = (!Norm::kCentered ? 768
                                              : sizeof(T) == 2 ? 512
                                                               : 1024) /
                                             static_cast<int64_t>(sizeof(T));

inline constexpr int64_t kFolded = kFoldRows<double>;      // rows whose sums are folded together
inline constexpr int64_t kBatch = 4 * kFolded;             // rows at most: they hide how long each step takes
inline constexpr int64_t kBatchBytes = int64_t{12} << 10;  // of two inputs, which the second pass finds in a cache
inline constexpr int64_t kSparingBatchBytes = int64_t{4} << 10;  // so few that requests for them hold up no read

// Loops over rows are unrolled where a pack is two vectors. Where it is more, the code would grow and the registers
// end.
inline constexpr bool kUnrollsRows = HWY_TARGET == HWY_AVX3;

// Rows that are computed where there are `rows`: the others are as if they were 0 and their rstd 1.
HWY_INLINE int64_t whole_folds(int64_t rows) { return ceil_div(rows, kFolded) * kFolded; }

// A batch's terms, as RowTerms has a row's.
template <class W, int64_t kRows = kBatch>
struct Batch {
  HWY_ALIGN W rstd[kRows];
  HWY_ALIGN W slope[kRows];
  HWY_ALIGN W offset[kRows];
  bool tame;  // each of the rows
};

// What the fold of each row's lanes gives.
template <class Norm, int64_t kRows = kBatch>
struct BatchSums {
  HWY_ALIGN double gx[kRows];
  HWY_ALIGN double g[Norm::kCentered ? kRows : 1];
};

// False where a row is not tame.
template <class T, int64_t kRows>
HWY_INLINE bool load_rstd(const NormBackward<T>& p, int64_t row, int64_t rows, Batch<Wide<T>, kRows>& batch) {
  using W = Wide<T>;
  const hn::Rebind<W, Tag<double>> d;
  const W* from = p.rstd + row;
  const int64_t folds = whole_folds(rows);
  if (rows < folds) {
    for (int64_t r = 0; r < folds; ++r) batch.rstd[r] = r < rows ? from[r] : W{1};
    from = batch.rstd;
  }
  auto tame = hn::FirstN(d, kFolded);
  for (int64_t r = 0; r < folds; r += kVectorLanes<double>) {
    const auto rstd = hn::LoadU(d, from + r), size = hn::Abs(rstd);
    hn::Store(rstd, d, batch.rstd + r);
    tame = hn::And(tame, hn::And(hn::Ge(size, hn::Set(d, kTameLeast<W>)), hn::Le(size, hn::Set(d, kTameMost<W>))));
  }
  return hn::AllTrue(d, tame);
}

// How long the rows of a batch are: half a pack or less, a pack, a run, or some runs.
enum class Length { kHalf, kPack, kRun, kRuns };

// The first pass over kFolded rows, whose rstd are tame.
template <class Norm, Length kLength, class T>
HWY_INLINE void batch_sums(const NormBackward<T>& p, int64_t row, int64_t rows, double* gx_sums, double* g_sums) {
  using W = Wide<T>;
  constexpr int64_t kStep = kPackLanes<W>;
  constexpr bool kHalf = kLength == Length::kHalf, kPack = kHalf || kLength == Length::kPack;
  Vector<double> gx[kFolded], g[kFolded];
  const auto add_run = [&](const RowSet<Norm, T, 1>& set, int64_t begin, int64_t end, Pack<W>& gx_run, Pack<W>& g_run)
                           HWY_ATTR {
                             const int64_t whole = kPack ? begin : end - (end - begin) % kStep;
                             const Part rest{static_cast<size_t>(end - whole)};
                             gx_run = g_run = zero_pack<W>();
                             for (int64_t c = begin; c < whole; c += kStep) {
                               add_products<Norm, true>(Full(), set, p.gamma.wide, c, &gx_run, &g_run);
                             }
                             if (kPack || rest.n > 0)
                               add_products<Norm, true>(rest, set, p.gamma.wide, whole, &gx_run, &g_run);
                           };
  const auto add_row = [&](int64_t r, const RowSet<Norm, T, 1>& set) HWY_ATTR {
    Pack<W> gx_run, g_run;
    if constexpr (kLength == Length::kRuns) {
      DoubleLanes<W> gx_lanes = zero_lanes<W>(), g_lanes = zero_lanes<W>();
      for (int64_t c = 0; c < p.columns; c += kRun<W>) {
        add_run(set, c, HWY_MIN(c + kRun<W>, p.columns), gx_run, g_run);
        add_lanes(gx_run, gx_lanes);
        if constexpr (Norm::kCentered) add_lanes(g_run, g_lanes);
      }
      gx[r] = fold_to_vector<double>(gx_lanes.v);
      if constexpr (Norm::kCentered) g[r] = fold_to_vector<double>(g_lanes.v);
    } else {
      add_run(set, 0, p.columns, gx_run, g_run);
      gx[r] = fold_as_double<kHalf>(gx_run);
      if constexpr (Norm::kCentered) g[r] = fold_as_double<kHalf>(g_run);
    }
  };
  RowSet<Norm, T, 1> set(p, row);
  if (kUnrollsRows && rows == kFolded) {
    DESCEND_UNROLL
    for (int64_t r = 0; r < kFolded; ++r) {
      if constexpr (Norm::kCentered) set.mean[0] = splat(p.mean[row + r]);
      add_row(r, set);
      set.dy[0] += p.dy.stride;
      set.x[0] += p.x.stride;
    }
  } else {
    for (int64_t r = 0; r < rows; ++r) add_row(r, RowSet<Norm, T, 1>(p, row + r));
    for (int64_t r = rows; r < kFolded; ++r) gx[r] = g[r] = hn::Zero(Tag<double>());
  }
  fold_rows<double>(gx, gx_sums);
  if constexpr (Norm::kCentered) fold_rows<double>(g, g_sums);
}

template <class Norm, class T>
HWY_INLINE void batch_sums(const NormBackward<T>& p, int64_t row, int64_t rows, BatchSums<Norm>& sums) {
  using W = Wide<T>;
  constexpr int64_t kStep = kPackLanes<W>;
  const auto each_fold = [&](auto length) HWY_ATTR {
    for (int64_t r = 0; r < rows; r += kFolded) {
      batch_sums<Norm, length()>(p, row + r, HWY_MIN(kFolded, rows - r), sums.gx + r,
                                 Norm::kCentered ? sums.g + r : nullptr);
    }
  };
  if (!kSplits<T> && p.columns <= kStep / 2) {
    each_fold(std::integral_constant<Length, kSplits<T> ? Length::kPack : Length::kHalf>());
  } else if (p.columns <= kStep) {
    each_fold(std::integral_constant<Length, Length::kPack>());
  } else if (kNearBatchColumns<Norm, T> <= kRun<W> || p.columns <= kRun<W>) {
    each_fold(std::integral_constant<Length, Length::kRun>());
  } else {
    each_fold(std::integral_constant<Length, Length::kRuns>());
  }
}

// slope and offset from the sums, as row_terms() has them; tame where it would say so of each row.
template <class Norm, class W, int64_t kRows>
HWY_INLINE void batch_terms(int64_t rows, int64_t columns, const BatchSums<Norm, kRows>& sums, Batch<W, kRows>& batch) {
  const Tag<double> d;
  const hn::Rebind<W, Tag<double>> dw;
  const Divisor n(static_cast<double>(columns));
  const auto zero = hn::Zero(d);
  const auto least = splat(static_cast<double>(std::numeric_limits<W>::min()));
  const auto most = splat(static_cast<double>(std::numeric_limits<W>::max()));
  auto tame = hn::FirstN(d, kFolded);
  for (int64_t r = 0; r < whole_folds(rows); r += kVectorLanes<double>) {
    const auto rstd = load_as_double(batch.rstd + r);
    const auto gx = n(hn::Add(zero, hn::Load(d, sums.gx + r)));
    const auto slope = hn::Mul(hn::Mul(hn::Mul(gx, rstd), rstd), rstd), size = hn::Abs(slope);
    hn::Store(narrow_double<W>(d, slope), dw, batch.slope + r);
    const auto exact = hn::Or(hn::Ge(hn::Min(size, hn::Abs(gx)), least), hn::Eq(size, zero));
    tame = hn::And(tame, hn::And(hn::Le(size, most), exact));
    if constexpr (Norm::kCentered) {
      const auto g = n(hn::Add(zero, hn::Load(d, sums.g + r)));
      const auto offset = hn::Mul(g, rstd);
      hn::Store(narrow_double<W>(d, offset), dw, batch.offset + r);
      tame = hn::And(tame, hn::Le(hn::Abs(offset), most));
    }
  }
  batch.tame = hn::AllTrue(d, tame);
}

// The first pass over a batch.
template <class Norm, Output kOutput, class T>
HWY_INLINE void prepare_batch(const NormBackward<T>& p, int64_t row, int64_t rows, Batch<Wide<T>>& batch) {
  batch.tame = load_rstd(p, row, rows, batch);
  if (kOutput == Output::kNone || !batch.tame) return;
  BatchSums<Norm> sums;
  batch_sums<Norm>(p, row, rows, sums);
  batch_terms<Norm>(rows, p.columns, sums, batch);
}

// What the second pass over a batch keeps in registers: of a pair of vectors of columns, kCount.
template <class Norm, size_t kCount, class T>
struct PairSums {
  using W = Wide<T>;
  HWY_INLINE PairSums() {}  // as Pack's
  Vector<W> gamma[kCount], dgamma[kCount], dbeta[kCount];
};

// The second pass over kRows rows of a batch from row `first` on. All loads go before all stores: arrays often begin at
// the same place of a page, and the processor would hold a load back that follows the store to the like place.
template <class Norm, Output kOutput, int kRows, size_t kCount, class T, class Extent>
HWY_INLINE void batch_rows(Extent extent, const NormBackward<T>& p, int64_t row, int64_t first, int64_t c, size_t pair,
                           const Batch<Wide<T>>& batch, const Rows<T>& dx, PairSums<Norm, kCount, T>& sums) {
  using W = Wide<T>;
  Vector<W> result[kRows][2];
  const T *dy = p.dy.row(row + first) + c, *x = p.x.row(row + first) + c;
  DESCEND_UNROLL
  for (int i = 0; i < kRows; ++i) {
    const int64_t r = first + i;
    const auto rstd = splat(batch.rstd[r]), slope = splat(batch.slope[r]);
    const auto offset = Norm::kCentered ? splat(batch.offset[r]) : slope;
    DESCEND_UNROLL
    for (size_t v = 0; v < kCount; ++v) {
      const size_t k = pair_vector<T>(pair, v);
      auto xc = load_split(extent, x, k);
      if constexpr (Norm::kCentered) xc = hn::Sub(xc, splat(p.mean[row + r]));
      result[i][v] = apply<true, Norm>(load_split(extent, dy, k), xc, sums.gamma[v], rstd, slope, offset,
                                       sums.dgamma[v], sums.dbeta[v]);
    }
    dy += p.dy.stride;
    x += p.x.stride;
  }
  if constexpr (kOutput == Output::kNone) return;
  T* to = dx.row(first) + c;
  DESCEND_UNROLL
  for (int i = 0; i < kRows; ++i) {
    if constexpr (kCount == 1) {
      store_vector<kOutput == Output::kStream, Nan::kOfBfloat16>(extent, result[i][0], to, pair_first<T>(pair));
    } else {
      store_split<kOutput == Output::kStream, Nan::kOfBfloat16>(extent, result[i][0], result[i][1], to, pair);
    }
    to += dx.stride;
  }
}

// The second pass over a batch: kCount vectors of a pair of the pack at c.
template <class Norm, Output kOutput, size_t kCount, class T, class Extent, class Columns>
HWY_INLINE void batch_pair(Extent extent, const NormBackward<T>& p, int64_t row, int64_t r, int64_t end, int64_t c,
                           size_t pair, const Batch<Wide<T>>& batch, const Rows<T>& dx, Columns& columns) {
  using W = Wide<T>;
  const Tag<W> d;
  PairSums<Norm, kCount, T> sums;
  size_t at[kCount];
  DESCEND_UNROLL
  for (size_t v = 0; v < kCount; ++v) {
    const size_t k = pair_vector<T>(pair, v);
    at[v] = static_cast<size_t>(c) + k * kVectorLanes<W>;
    sums.gamma[v] = load_beside<T>(extent, p.gamma.wide + c, k);
    sums.dgamma[v] = hn::Load(d, columns.dgamma + at[v]);
    if constexpr (Norm::kCentered) sums.dbeta[v] = hn::Load(d, columns.dbeta + at[v]);
  }
  if constexpr (kUnrollsRows) {
    for (; r + 4 <= end; r += 4) batch_rows<Norm, kOutput, 4>(extent, p, row, r, c, pair, batch, dx, sums);
  }
  for (; r < end; ++r) batch_rows<Norm, kOutput, 1>(extent, p, row, r, c, pair, batch, dx, sums);
  DESCEND_UNROLL
  for (size_t v = 0; v < kCount; ++v) {
    hn::Store(sums.dgamma[v], d, columns.dgamma + at[v]);
    if constexpr (Norm::kCentered) hn::Store(sums.dbeta[v], d, columns.dbeta + at[v]);
  }
}

// The second pass over rows [begin, end) of the batch whose first row is `row`, and whose results go to `dx`.
template <class Norm, Output kOutput, class T, class Columns>
HWY_INLINE void apply_batch(const NormBackward<T>& p, int64_t row, int64_t begin, int64_t end,
                            const Batch<Wide<T>>& batch, const Rows<T>& dx, Columns& columns) {
  constexpr int64_t kStep = kPackLanes<Wide<T>>;
  int64_t c = 0;
  for (; c + kStep <= p.columns; c += kStep) {
    for (size_t pair = 0; pair < kVectorPairs<T>; ++pair) {
      batch_pair<Norm, kOutput, 2>(Full(), p, row, begin, end, c, pair, batch, dx, columns);
    }
  }
  if (c == p.columns) return;
  const Part part{static_cast<size_t>(p.columns - c)};
  if (kVectorPairs<T> == 1 && !reaches<T>(part, 1)) {
    batch_pair<Norm, kOutput, 1>(part, p, row, begin, end, c, 0, batch, dx, columns);
  } else {
    for (size_t pair = 0; pair < kVectorPairs<T>; ++pair) {
      if (!reaches<T>(part, pair_first<T>(pair))) break;
      batch_pair<Norm, kOutput, 2>(part, p, row, begin, end, c, pair, batch, dx, columns);
    }
  }
}

template <class Norm, Output kOutput, class T, class Columns>
HWY_INLINE void apply_wild_row(const NormBackward<T>& p, int64_t row, T* dx, Columns& columns) {
  RowSums sums;
  if (kOutput != Output::kNone) group_sums<Norm, 1>(p, row, 1, &sums);
  const RowTerms<Wide<T>> terms = terms_of<Norm>(p, row, sums);
  apply_group<Norm, kOutput, 1>(p, row, 1, &terms, {dx, 0}, columns);
}

// Asks for `count` rows.
template <class T>
HWY_INLINE void prefetch_rows(const Rows<const T>& rows, int64_t row, int64_t count, int64_t columns) {
  const bool dense = rows.stride == columns;
  const int64_t n = dense ? count * columns : columns;
  for (const int64_t end = row + count; row < end; row += dense ? count : 1) {
    for (int64_t c = 0; c < n; c += 64 / static_cast<int64_t>(sizeof(T))) prefetch_distant(rows.row(row) + c);
  }
}

// Rows [first, last), batch by batch. The first pass over a batch comes before the second pass over the one above it:
// the long chain from its columns to its terms then has work beside it.
template <class Norm, Output kOutput, class T>
HWY_INLINE void short_rows(NormBackward<T> p, int64_t first, int64_t last, const RowCut& cut, Stores stores) {
  const int64_t stripe = stripe_rows<T>(p.rows);
  Columns<Norm, T, kNearBatchColumns<Norm, T>> columns(p);
  Results<T> results(p, stores);
  Batch<Wide<T>> batches[2];
  const int64_t row_bytes = p.columns * static_cast<int64_t>(sizeof(T));
  const int64_t bytes = cut.ask >= Ask::kSparing ? kSparingBatchBytes : kBatchBytes;
  const int64_t step = HWY_MAX(HWY_MIN(kBatch, bytes / (2 * row_bytes) / kFolded * kFolded), kFolded);
  const int64_t ahead = cut.ask != Ask::kNothing ? ceil_div(kAheadBytes, row_bytes * step) * step + step : 0;
  const auto prepare = [&](int64_t row) HWY_ATTR {
    prepare_batch<Norm, kOutput>(p, row, HWY_MIN(step, last - row), batches[(row - first) / step % 2]);
  };
  prepare(first);
  int64_t chunk = first / cut.chunk, in_chunk = 0, in_stripe = 0;
  for (int64_t row = first, i = 0; row < last; row += step, ++i) {
    if (row + step < last) prepare(row + step);
    if (ahead != 0 && row + ahead + step <= last) {
      prefetch_rows(p.dy, row + ahead, step, p.columns);
      prefetch_rows(p.x, row + ahead, step, p.columns);
    }
    const Batch<Wide<T>>& batch = batches[i % 2];
    const int64_t rows = HWY_MIN(step, last - row);
    const Rows<T> dx = results.from(row);
    for (int64_t r = 0; r < rows;) {
      if (in_stripe == 0) columns.clear();
      const int64_t taken = HWY_MIN(rows - r, HWY_MIN(stripe - in_stripe, cut.chunk - in_chunk));
      if (batch.tame) {
        apply_batch<Norm, kOutput>(p, row, r, r + taken, batch, dx, columns);
      } else {
        for (int64_t wild = r; wild < r + taken; ++wild) {
          apply_wild_row<Norm, kOutput>(p, row + wild, dx.row(wild), columns);
        }
      }
      r += taken;
      in_stripe += taken;
      in_chunk += taken;
      const bool chunk_ends = in_chunk == cut.chunk || row + r == last;
      if (in_stripe == stripe || chunk_ends) {
        columns.add_to(p, in_chunk == in_stripe, chunk * p.columns);
        in_stripe = 0;
      }
      if (chunk_ends) {
        ++chunk;
        in_chunk = 0;
      }
    }
    results.written(row, rows);
  }
  results.finish(last);
}

// ---- Rows of very few columns: a tile of them as if they were one, but for their sums.

// Column sums of a chunk: of each tile in chains of float across the rows, of these in double.
template <class W>
class NarrowSums {
 public:
  HWY_INLINE explicit NarrowSums(int64_t columns) : columns_(columns) {}

  HWY_INLINE void clear() { std::memset(chains_, 0, sizeof chains_); }

  // Adds `terms`, one for each of n elements of a tile.
  HWY_INLINE void add(const W* terms, int64_t n) {
    const Tag<W> d;
    const int64_t period = columns_ * kChains;
    for (int64_t chain = 0; chain < HWY_MIN(period, n); chain += kVectorLanes<W>) {
      Vector<W> sum = hn::Zero(d);
      for (int64_t i = chain; i < n; i += period) {
        const size_t left = static_cast<size_t>(n - i);
        const auto v = hn::Load(d, terms + i);
        sum = hn::Add(sum, left < kVectorLanes<W> ? hn::IfThenElseZero(hn::FirstN(d, left), v) : v);
      }
      constexpr size_t kWide = kVectorLanes<W> / kVectorLanes<double>;
      Vector<double> wide[kWide];
      to_double<W, 1>(&sum, wide);
      each<kWide>([&](size_t k) DESCEND_INLINED {
        double* to = chains_ + chain + k * kVectorLanes<double>;
        hn::Store(hn::Add(hn::Load(Tag<double>(), to), wide[k]), Tag<double>(), to);
      });
    }
  }

  // Adds a sum of each column.
  HWY_INLINE void add(const double* sums) {
    for (int64_t c = 0; c < columns_; ++c) chains_[c] += sums[c];
  }

  HWY_INLINE void store(double* to) const {
    if (to == nullptr) return;
    for (int64_t c = 0; c < columns_; ++c) {
      double sum = 0;
      for (int64_t i = c; i < columns_ * kChains; i += columns_) sum += chains_[i];
      to[c] = sum;
    }
  }

 private:
  static constexpr int64_t kChains = kFoldRows<W>;  // of each column

  HWY_ALIGN double chains_[kNarrowColumns * kChains];
  int64_t columns_;
};

// Rows of a tile whose column sums run in one chain of float each, where some row is not tame.
inline constexpr int64_t kWildStripe = 32;

// Such a tile, row by row.
template <class Norm, Output kOutput, class T>
HWY_NOINLINE void apply_wild_tile(NormBackward<T> p, int64_t row, int64_t rows, NarrowSums<Wide<T>>& dgamma,
                                  NarrowSums<Wide<T>>& dbeta) {
  double sums[2][kNarrowColumns];
  if (p.dgamma.wanted()) p.dgamma = {.slots = sums[0]};
  if (p.dbeta.wanted()) p.dbeta = {.slots = sums[1]};
  Columns<Norm, T, kPackLanes<Wide<T>>> columns(p);
  for (const int64_t last = row + rows; row < last;) {
    columns.clear();
    for (const int64_t stripe = HWY_MIN(row + kWildStripe, last); row < stripe; ++row) {
      apply_wild_row<Norm, kOutput>(p, row, p.dx.row(row), columns);
    }
    columns.add_to(p, true, 0);
    if (p.dgamma.wanted()) dgamma.add(sums[0]);
    if (p.dbeta.wanted()) dbeta.add(sums[1]);
  }
}

// Rows [first, last), which are whole chunks.
template <class Norm, Output kOutput, class T>
HWY_NOINLINE void narrow_rows(const NormBackward<T>& p, int64_t first, int64_t last, const RowCut& cut) {
  using W = Wide<T>;
  constexpr int64_t kRows = kTileRows<W>;
  const Tag<W> d;
  HWY_ALIGN W dy[kTileRoom<W>];
  HWY_ALIGN W xc[kTileRoom<W>];
  HWY_ALIGN W terms[kTileRoom<W>];  // of a sum
  HWY_ALIGN W means[kRows] = {};
  Batch<W, kRows> batch;
  BatchSums<Norm, kRows> sums;
  Spread<W> gamma, mean, rstd, slope, offset;
  NarrowSums<W> dgamma(p.columns), dbeta(p.columns);
  HWY_ALIGN W few[kPackLanes<W>];
  gamma.repeat(widened(p.gamma, p.columns, few), HWY_MIN(kRows, last - first), p.columns);
  const auto vector_of = [](const W* tile, int64_t c, size_t k)
                             HWY_ATTR { return hn::Load(Tag<W>(), tile + c + k * kVectorLanes<W>); };
  const auto prepare = [&](int64_t row, int64_t rows) HWY_ATTR {
    const int64_t n = rows * p.columns;
    if (!load_rstd(p, row, rows, batch)) return false;
    read_tile<T>({p.dy.row(row), p.dy.stride}, rows, p.columns, dy);
    read_tile<T>({p.x.row(row), p.x.stride}, rows, p.columns, xc);
    if constexpr (Norm::kCentered) {
      copy_few(p.mean + row, rows, means);
      mean.fill(means, rows, p.columns);
      for_each_vector(n, xc, [&](int64_t c, size_t k) HWY_ATTR { return hn::Sub(vector_of(xc, c, k), mean.at(c, k)); });
    }
    if constexpr (kOutput == Output::kNone) return true;
    const auto g = [&](int64_t c, size_t k) HWY_ATTR { return hn::Mul(vector_of(dy, c, k), gamma.at(c, k)); };
    for_each_vector(n, terms, [&](int64_t c, size_t k) HWY_ATTR { return hn::Mul(g(c, k), vector_of(xc, c, k)); });
    sum_narrow<kSplits<T>>(terms, rows, p.columns, sums.gx);
    if constexpr (Norm::kCentered) {
      for_each_vector(n, terms, g);
      sum_narrow<kSplits<T>>(terms, rows, p.columns, sums.g);
    }
    batch_terms(rows, p.columns, sums, batch);
    return batch.tame;
  };
  for (int64_t chunk = first; chunk < last; chunk += cut.chunk) {
    const int64_t end = HWY_MIN(chunk + cut.chunk, last);
    dgamma.clear();
    dbeta.clear();
    for (int64_t row = chunk; row < end; row += kRows) {
      const int64_t rows = HWY_MIN(kRows, end - row), n = rows * p.columns;
      if (!prepare(row, rows)) {
        apply_wild_tile<Norm, kOutput>(p, row, rows, dgamma, dbeta);
        continue;
      }
      rstd.fill(batch.rstd, rows, p.columns);
      if constexpr (kOutput == Output::kNone) {
        for_each_vector(n, terms, [&](int64_t c, size_t k) HWY_ATTR {
          return hn::Mul(hn::Mul(vector_of(dy, c, k), rstd.at(c, k)), vector_of(xc, c, k));
        });
      } else {
        slope.fill(batch.slope, rows, p.columns);
        if constexpr (Norm::kCentered) offset.fill(batch.offset, rows, p.columns);
        for (int64_t c = 0; c < n; c += kPackLanes<W>) {
          each<kPackVectors<W>>([&](size_t k) DESCEND_INLINED {
            auto term = hn::Zero(d), unused = hn::Zero(d);
            const auto dx = apply<true, Norm>(vector_of(dy, c, k), vector_of(xc, c, k), gamma.at(c, k), rstd.at(c, k),
                                              slope.at(c, k), Norm::kCentered ? offset.at(c, k) : unused, term, unused);
            hn::Store(dx, d, xc + c + k * kVectorLanes<W>);
            hn::Store(term, d, terms + c + k * kVectorLanes<W>);
          });
        }
        write_tile<T>(xc, rows, p.columns, {p.dx.row(row), p.dx.stride});
      }
      if (p.dgamma.wanted()) dgamma.add(terms, n);
      if (p.dbeta.wanted()) dbeta.add(dy, n);
    }
    dgamma.store(p.dgamma.from(chunk / cut.chunk * p.columns).slots);
    dbeta.store(p.dbeta.from(chunk / cut.chunk * p.columns).slots);
  }
}

// Whether rows are best worked on one at a time: those that have room in the first-level cache with all that is used
// beside them, and of near ones those that all but fill it. What is read twice then stays there, where of two rows it
// would not; of longer ones, two share what comes from the next cache. Rows of bfloat16 that are not aligned may be
// longer: each of their vectors lies in two lines.
template <class Norm, class T>
bool go_one_by_one(const NormBackward<T>& p, bool near) {
  const int64_t bytes = p.columns * kColumnBytes<Norm, T>;
  const bool straddles = kSplits<T> && !(are_aligned(p.dy) && are_aligned(p.x));
  const int64_t room = near ? kFirstCacheRoom / 4 * 5 : kFirstCacheRoom;
  return bytes <= room || (straddles && bytes / 3 * 2 <= kFirstCacheRoom);
}

template <class Norm, Output kOutput, class T>
HWY_INLINE void all_rows(const NormBackward<T>& p, int64_t first, int64_t last, const RowCut& cut, Stores stores) {
  if constexpr (sizeof(T) < sizeof(double) && !kIsShort<T>) {
    constexpr Output kStored = kOutput == Output::kNone ? Output::kNone : Output::kPlain;
    if (p.columns <= kNarrowColumns) return narrow_rows<Norm, kStored>(p, first, last, cut);
  }
  if constexpr (kSplits<T>) {
    if (is_short(p)) return all_rows<Norm, kOutput>(shortened(p), first, last, cut, stores);
  }
  // Not in double, nor where a batch's packs would fill the registers many times over.
  constexpr bool kBatches = sizeof(T) < sizeof(double) && kPackVectors<Wide<T>> <= 4;
  if constexpr (kBatches) {
    if (p.columns <= (cut.near ? kNearBatchColumns<Norm, T> : kBatchColumns<T>)) {
      return short_rows<Norm, kOutput>(p, first, last, cut, stores);
    }
  }
  if constexpr (!kBatches || !kIsShort<T>) {
    if constexpr (kOutput != Output::kNone && sizeof(T) < sizeof(double)) {
      if (go_one_by_one<Norm>(p, cut.near)) return all_rows<Norm, kOutput, 1>(p, first, last, cut, stores);
    }
    all_rows<Norm, kOutput, kGroupOf<Norm, T>>(p, first, last, cut, stores);
  }
}

// Some columns as a matrix of its own. It is not copied again before it is used: vectors that are read where numbers
// were just written wait until all results above are stored.
template <class T>
HWY_INLINE NormBackward<T> columns_of(const NormBackward<T>& whole, int64_t begin, int64_t columns) {
  NormBackward<T> p = whole;
  p.columns = columns;
  p.dy.data = whole.dy.data + begin;
  p.x.data = whole.x.data + begin;
  p.gamma = whole.gamma.from(begin);
  if (whole.dx.data != nullptr) p.dx.data = whole.dx.data + begin;
  p.dgamma = whole.dgamma.from(begin);
  p.dbeta = whole.dbeta.from(begin);
  return p;
}

// What is read after all rows of a group's block but `rows`: the next block of the first ones.
template <class T>
HWY_INLINE Distance next_block(const NormBackward<T>& p, int64_t rows) {
  return {p.columns - rows * p.dy.stride, p.columns - rows * p.x.stride};
}

// The first pass over a block of a group: its rows from r on, kMaxGroup at most.
template <class Norm, class T>
HWY_INLINE void block_sums(const NormBackward<T>& p, int64_t r, const BlockGroup& group, RowSums* sums) {
  const int64_t rows = HWY_MIN(int64_t{kMaxGroup}, group.rows - r);
  const Distance below = r + rows < group.rows ? rows_below(p, rows) : next_block(p, r);
  group_sums<Norm, kMaxGroup>(p, group.row + r, rows, sums + r, group.ask, below);
}

// Column sums of a block whose rows, some stripes, are all there are: in double until they are written where they end.
template <class Norm, class T>
class Totals {
 public:
  HWY_INLINE Totals() {}  // spelled out: an implicit one might clear the sums

  // From here on p's sums go to these.
  HWY_INLINE void take_place(NormBackward<T>& p) {
    take_place(p.dgamma, dgamma_, dgamma_to_);
    take_place(p.dbeta, dbeta_, dbeta_to_);
  }

  HWY_INLINE void write(int64_t n, bool stream) const {
    leave_sums(dgamma_, n, dgamma_to_, true, stream);
    leave_sums(dbeta_, n, dbeta_to_, true, stream);
  }

 private:
  static HWY_INLINE void take_place(ColumnSums<T>& sums, double* slot, ColumnSums<T>& to) {
    if (sums.slots != nullptr || !sums.wanted()) return;
    to = sums;
    sums = {.slots = slot};
  }

  ColumnSums<T> dgamma_to_, dbeta_to_;
  HWY_ALIGN double dgamma_[kBlock];
  HWY_ALIGN double dbeta_[Norm::kCentered ? kBlock : 1];
};

// Results of a group's block and, in step with them, the first pass over that block of the group below.
template <class Norm, Output kOutput, class T>
HWY_INLINE void apply_block(NormBackward<T>& p, const BlockGroup& group, const RowTerms<Wide<T>>* terms,
                            const BlockGroup& below, RowSums* sums, Stores stores) {
  const int64_t stripe = stripe_rows<T>(p.rows);
  const bool one_stripe = p.rows <= stripe, stream = stores != Stores::kPlain;
  Columns<Norm, T, kBlock> columns(p);
  Totals<Norm, T> totals;
  if (!one_stripe) totals.take_place(p);
  Stage<T, kStages<T> ? kMaxGroup * kBlock : 1> stage;
  for (int64_t r = 0; r < group.rows; r += kMaxGroup) {
    if (r % stripe == 0) columns.clear();
    const int64_t row = group.row + r, end = HWY_MIN(r + kMaxGroup, group.rows);
    const Rows<T> belonging{p.dx.row(row), p.dx.stride};
    const Rows<T> dx = stores == Stores::kStaged ? stage.rows(belonging, p.columns) : belonging;
    bool in_step =
        kOutput != Output::kNone && kHasVectors && r + kMaxGroup <= below.rows && are_tame(p, below.row + r, kMaxGroup);
    for (int64_t i = r; i < end; ++i) in_step = in_step && terms[i].tame;
    const auto after = [&](const BlockGroup& read) HWY_ATTR {
      return After{read.ask, end < read.rows ? rows_below(p, end - r) : next_block(p, r)};
    };
    if (in_step) {
      const NextSums next{below.row + r, sums + r};
      apply_rows<Norm, true, kOutput, kMaxGroup, kHasVectors>(p, row, terms + r, dx, columns, after(below), next);
    } else {
      apply_group<Norm, kOutput, kMaxGroup>(p, row, end - r, terms + r, dx, columns, after(group));
      if (kOutput != Output::kNone && r < below.rows) block_sums<Norm>(p, r, below, sums);
    }
    if (stores == Stores::kStaged) stage.stream(belonging, end - r, p.columns);
    if (one_stripe) {
      if (end == p.rows) columns.write_to(p, stream);
    } else if (end == group.rows || end % stripe == 0) {
      columns.add_to(p, group.row == 0 && r < stripe, 0);
    }
  }
  totals.write(p.columns, stream);
  stage.finish();
  if (stream) flush_streams();
}

// ---- What NormBackwardKernels points to.

template <class Norm, class T>
void norm_backward_rows(const NormBackward<T>& p, int64_t first, int64_t last, const RowCut& cut, Stores stores) {
  if (kHasVectors && stores == Stores::kStream) {
    all_rows<Norm, kStreamed>(p, first, last, cut, stores);
  } else if (p.dx.data != nullptr) {
    all_rows<Norm, Output::kPlain>(p, first, last, cut, stores);
  } else if constexpr (Norm::kCentered) {
    all_rows<Norm, Output::kNone>(p, first, last, cut, stores);
  }
}

template <class Norm, class T>
void norm_backward_block_sums(const NormBackward<T>& whole, const BlockGroup& group, int64_t block, RowSums* sums) {
  const int64_t begin = block * kBlock;
  NormBackward<T> p = columns_of(whole, begin, HWY_MIN(kBlock, whole.columns - begin));
  const Columns<Norm, T, kBlock> columns(p);
  for (int64_t r = 0; r < group.rows; r += kMaxGroup) block_sums<Norm>(p, r, group, sums);
}

template <class Norm, class T>
RowSums norm_backward_wild_sums(const NormBackward<T>& whole, int64_t row) {
  RowSums sums;
  for (int64_t begin = 0; begin < whole.columns; begin += kBlock) {
    NormBackward<T> p = columns_of(whole, begin, HWY_MIN(kBlock, whole.columns - begin));
    const Columns<Norm, T, kBlock> columns(p);
    RowSums block;
    row_sums<Norm, false, 1>(p, row, Ask::kNothing, {}, &block);
    sums.gx += block.gx;
    sums.g += block.g;
  }
  return sums;
}

template <class Norm, class T>
void norm_backward_results(const NormBackward<T>& whole, const BlockGroup& group, int64_t column, int64_t columns,
                           const RowTerms<Wide<T>>* terms, const BlockGroup& below, RowSums* sums, Stores stores) {
  NormBackward<T> p = columns_of(whole, column, columns);
  if (kHasVectors && stores == Stores::kStream) {
    apply_block<Norm, kStreamed>(p, group, terms, below, sums, stores);
  } else if (p.dx.data != nullptr) {
    apply_block<Norm, Output::kPlain>(p, group, terms, below, sums, stores);
  } else if constexpr (Norm::kCentered) {
    apply_block<Norm, Output::kNone>(p, group, terms, below, sums, stores);
  }
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DESCEND_KERNELS_NORM_BACKWARD_INL_H_
