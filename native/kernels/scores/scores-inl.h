// Rows of scores: what is folded of them, and what is made of each.
#pragma once

#include <limits>

#include "kernels/rows/prefetch-inl.h"
#include "kernels/rows/spread-inl.h"
#include "kernels/rows/stage-inl.h"
#include "kernels/scores/cross_entropy.h"
#include "kernels/simd/doubles-inl.h"
#include "kernels/simd/exp-inl.h"
#include "kernels/simd/fold_rows-inl.h"
#include "kernels/simd/log-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Results that are made at a time: with what they are made of they stay in a first-level cache.
inline constexpr int64_t kSpanColumns = 1024;

// A number as two of the type of the arithmetic: what is less than it by a little loses no digits.
template <class W>
struct TwoParts {
  Vector<W> high, low;
  HWY_INLINE explicit TwoParts(double v) : high(splat(static_cast<W>(v))), low(splat(low_of(v))) {}
  static HWY_INLINE W low_of(double v) { return std::isfinite(v) ? static_cast<W>(v - static_cast<W>(v)) : W{0}; }
  HWY_INLINE Vector<W> less(Vector<W> v) const { return hn::Sub(hn::Sub(v, high), low); }
};

// to[r] = what op puts together of of(r, x, extent, c, k) over n columns of each of up to kFoldRows rows, x being
// vector k of the pack at column c. `to` is aligned, and has room for whole folds.
template <class T, class Op, class F, class W = Wide<T>>
HWY_INLINE void fold_columns_of(const Rows<const T>& x, int64_t rows, int64_t n, W neutral, Op op, W* to, F of) {
  Vector<W> lanes[kFoldRows<W>];
  each<kFoldRows<W>>([&](size_t i) DESCEND_INLINED { lanes[i] = hn::Zero(Tag<W>()); });
  for (int64_t r = 0; r < rows; ++r) {
    const T* const row = x.row(r);
    Vector<W> folded[kPackVectors<W>];
    each<kPackVectors<W>>([&](size_t k) DESCEND_INLINED { folded[k] = splat(neutral); });
    for_each_pack<W>(0, n, [&](auto extent, int64_t c) DESCEND_INLINED {
      each<kPackVectors<W>>([&](size_t k) DESCEND_INLINED {
        if (!reaches<W>(extent, k)) return;
        const auto v = of(r, load(extent, row + c, k), extent, c, k);
        folded[k] = op(folded[k], inside_or<W>(extent, k, v, splat(neutral)));
      });
    });
    lanes[r] = fold_to_vector<W>(folded, op);
  }
  fold_rows<W>(lanes, to, op);
}

// y[c] = f(x[c], extent, c, k) of n neighbours; f works on vector k of the pack at c. kAhead: those that come some way
// behind them are asked for.
template <bool kAhead, class T, class F>
HWY_INLINE void map_columns(const T* x, T* y, int64_t n, F f) {
  using W = Wide<T>;
  for_each_pack<W>(0, n, [&](auto extent, int64_t c) DESCEND_INLINED {
    if constexpr (kAhead) prefetch_pack<prefetch_distant>(x + c, kAheadBytes / static_cast<int64_t>(sizeof(T)));
    each<kPackPairs<W>>([&](size_t pair) DESCEND_INLINED {
      if (!reaches<W>(extent, 2 * pair)) return;
      Vector<W> v[2]{hn::Zero(Tag<W>()), hn::Zero(Tag<W>())};
      each<2>([&](size_t j) DESCEND_INLINED {
        const size_t k = 2 * pair + j;
        if (reaches<W>(extent, k)) v[j] = f(load(extent, x + c, k), extent, c, k);
      });
      store_pair(extent, v[0], v[1], y + c, 2 * pair);
    });
  });
}

// Rows of so few columns are folded several at a time.
inline constexpr int64_t kFewColumns = 512;
template <class W>
HWY_INLINE int64_t rows_at_once(int64_t columns) {
  return columns <= kFewColumns ? kFoldRows<W> : 1;
}

// The sum of exp(x) over a row, as total * exp(most).
struct SumOfExps {
  double most = -std::numeric_limits<double>::infinity(), total = 0;

  HWY_INLINE void add(double other, double of_other) {
    if (other > most) {
      total = total == 0 ? of_other : total * exp_of_one(most - other) + of_other;  // most rows are one block
      most = other;
    } else {
      total += of_other * exp_of_one(other - most);
    }
  }
};

// Rows of very few columns, one after another: a vector holds one column of several. There are kFoldRows at most.
template <class T>
HWY_INLINE bool are_narrow(const Rows<T>& x, int64_t columns) {
  return columns <= kNarrowColumns && x.stride == columns;
}

// Numbers of so many rows of very few columns, with room for the pack at any of them.
template <class W>
inline constexpr int64_t kNarrowRoom = kFoldRows<W> * kNarrowColumns + kPackLanes<W>;

// The largest number of each of some narrow rows, and the sum of exp of what is less than it.
template <class T, class W = Wide<T>>
HWY_NOINLINE void fold_narrow(const T* x, int64_t rows, int64_t columns, W* most, W* total) {
  const Tag<W> d;
  HWY_ALIGN W wide[kNarrowRoom<W>] = {};
  widen_packs(x, rows * columns, wide);
  with_columns(columns, [&](auto count) HWY_ATTR {
    constexpr size_t kColumns = decltype(count)::value;
    for (int64_t r = 0; r < rows; r += kVectorLanes<W>) {
      Vector<W> v[kColumns], largest[kColumns];
      load_columns<kColumns>(d, wide + r * static_cast<int64_t>(kColumns), v);
      each<kColumns>([&](size_t c)
                         DESCEND_INLINED { largest[c] = Largest()(splat(std::numeric_limits<W>::lowest()), v[c]); });
      const auto of_row = fold_columns<kColumns>(largest, Largest());
      each<kColumns>([&](size_t c) DESCEND_INLINED { v[c] = exp_below<T>(hn::Sub(v[c], of_row)); });
      hn::Store(of_row, d, most + r);
      hn::Store(fold_columns<kColumns>(v, Sum()), d, total + r);
    }
  });
}

// Those of some rows, kFoldRows at most.
template <bool kAhead, class T, class W = Wide<T>>
HWY_INLINE void sum_exps(const Rows<const T>& x, int64_t rows, int64_t columns, SumOfExps* sums) {
  HWY_ALIGN W most[kFoldRows<W>], total[kFoldRows<W>];
  for (int64_t c = 0; c < columns; c += kBlock) {
    const int64_t n = HWY_MIN(kBlock, columns - c);
    const Rows<const T> block{x.data + c, x.stride};
    if (are_narrow(x, columns)) {
      fold_narrow(x.data, rows, columns, most, total);
    } else {
      fold_columns_of<T>(block, rows, n, std::numeric_limits<W>::lowest(), Largest(), most,
                         [](int64_t, auto v, auto, int64_t, size_t) DESCEND_INLINED { return v; });
      fold_columns_of<T>(block, rows, n, W{0}, Sum(), total,
                         [&](int64_t r, auto v, auto, int64_t at, size_t k) DESCEND_INLINED {
                           // What the next block's maximum is searched in.
                           if (kAhead && k == 0) prefetch_pack<prefetch_near>(block.row(r) + at, n);
                           return exp_below<T>(hn::Sub(v, splat(most[r])));
                         });
    }
    // What is most counts for 1, which the power of two of 16 bits is not quite.
    const double one = sizeof(T) == 2 ? kBriefPowerOfTwo[0] : 1;
    for (int64_t r = 0; r < rows; ++r) sums[r].add(most[r], total[r] / one);
  }
}

// The logarithms of the totals of some rows, kFoldRows at most; `logs` is aligned, and has room for so many.
HWY_INLINE void logs_of_sums(const SumOfExps* sums, int64_t rows, double* logs) {
  const Tag<double> d;
  for (int64_t r = 0; r < rows; ++r) logs[r] = sums[r].total;
  for_each_row_vector(rows, [&](int64_t r) HWY_ATTR { hn::Store(log(hn::Load(d, logs + r)), d, logs + r); });
}

// y = (x - most) - log of a row. Both differences have one sign, so that nothing cancels between them, and the first is
// smaller than the second, and so is its rounding. streams: past the caches, by way of the stage.
template <class T, class W = Wide<T>>
HWY_INLINE void map_log_softmax(const T* x, int64_t columns, double most, double log, T* y, bool streams,
                                Stage<T, kSpanColumns>& stage) {
  const auto first = splat(static_cast<W>(most)), second = splat(static_cast<W>(log));
  for (int64_t c = 0; c < columns; c += kSpanColumns) {
    const int64_t n = HWY_MIN(kSpanColumns, columns - c);
    const Rows<T> to{y + c, n};
    map_columns<false>(x + c, streams ? stage.rows(to, n).data : to.data, n,
                       [&](auto v, auto, int64_t, size_t)
                           DESCEND_INLINED { return hn::Sub(hn::Sub(v, first), second); });
    if (streams) stage.stream(to, 1, n);
  }
}

// The same of some narrow rows.
template <class T, class W = Wide<T>>
HWY_NOINLINE void map_log_softmax_narrow(const T* x, int64_t rows, int64_t columns, const SumOfExps* sums,
                                         const double* logs, T* y, bool streams, Stage<T, kSpanColumns>& stage) {
  const Tag<W> d;
  HWY_ALIGN W of_row[2][kFoldRows<W>] = {}, of_element[2][kNarrowRoom<W>] = {};
  for (int64_t r = 0; r < rows; ++r) {
    of_row[0][r] = static_cast<W>(sums[r].most), of_row[1][r] = static_cast<W>(logs[r]);
  }
  with_columns(columns, [&](auto count) HWY_ATTR {
    constexpr size_t kColumns = decltype(count)::value;
    for (int64_t r = 0; r < rows; r += kVectorLanes<W>) {
      each<2>([&](size_t i) DESCEND_INLINED {
        fill_columns<kColumns>(hn::Load(d, of_row[i] + r), of_element[i] + r * static_cast<int64_t>(kColumns));
      });
    }
  });
  const int64_t n = rows * columns;
  const Rows<T> to{y, n};
  map_columns<false>(x, streams ? stage.rows(to, n).data : to.data, n,
                     [&](auto v, auto, int64_t c, size_t k) DESCEND_INLINED {
                       const int64_t at = c + static_cast<int64_t>(k * kVectorLanes<W>);
                       return hn::Sub(hn::Sub(v, hn::LoadU(d, of_element[0] + at)), hn::LoadU(d, of_element[1] + at));
                     });
  if (streams) stage.stream(to, 1, n);
}

// The same of some rows, kFoldRows at most.
template <class T>
HWY_INLINE void map_log_softmax_rows(const Rows<const T>& x, int64_t rows, int64_t columns, const SumOfExps* sums,
                                     const double* logs, const Rows<T>& y, bool streams,
                                     Stage<T, kSpanColumns>& stage) {
  if (are_narrow(x, columns) && are_narrow(y, columns)) {
    return map_log_softmax_narrow(x.data, rows, columns, sums, logs, y.data, streams, stage);
  }
  for (int64_t r = 0; r < rows; ++r) {
    map_log_softmax(x.row(r), columns, sums[r].most, logs[r], y.row(r), streams, stage);
  }
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
