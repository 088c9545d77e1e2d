// The backward pass of a norm over rows, in two passes over each tile: the rows' sums, then dx and the column sums.
// Norm says which norm: RmsNorm or LayerNorm.
#if defined(DESCEND_KERNELS_NORM_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DESCEND_KERNELS_NORM_BACKWARD_INL_H_
#undef DESCEND_KERNELS_NORM_BACKWARD_INL_H_
#else
#define DESCEND_KERNELS_NORM_BACKWARD_INL_H_
#endif

#include "kernels/norm_backward.h"
#include "kernels/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Rows that are worked on side by side share each load of gamma and of the column sums.
inline constexpr int kAbreast = 4;

// For the row sums each row takes one or two packs of accumulators: as many rows as the registers hold.
struct RmsNorm {
  static constexpr bool kCentered = false;
  static constexpr int kSumsAbreast = HWY_TARGET == HWY_AVX3 ? 4 : 2;
};
struct LayerNorm {
  static constexpr bool kCentered = true;
  static constexpr int kSumsAbreast = HWY_TARGET == HWY_AVX3 ? 4 : 1;
};

// Packs that are summed in one chain of float: a short one loses little to rounding. The chains are added in double.
inline constexpr int64_t kRun = 8;

// Rows of each kAbreast of the next tile that the first pass asks for; the second, which also writes, asks for the
// others. Without that memory sits idle while they compute.
inline constexpr int kAskedFirst = 2;

enum class Output { kNone, kPlain, kStream };

// A few rows that are worked on side by side.
template <class T, int kRows>
struct RowSet {
  const T* dy[kRows];
  const T* x[kRows];
  Vector<Wide<T>> mean[kRows], rstd[kRows];

  HWY_INLINE RowSet(const NormBackward<T>& p, int64_t row) {
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) {
      dy[r] = p.dy.row(row + r);
      x[r] = p.x.row(row + r);
      mean[r] = p.mean == nullptr ? hn::Zero(Tag<Wide<T>>()) : splat(p.mean[row + r]);
      rstd[r] = splat(p.rstd[row + r]);
    }
  }

  template <class Norm, class Extent>
  HWY_INLINE Vector<Wide<T>> load_centered(Extent extent, int r, int64_t c, size_t k) const {
    const auto v = load(extent, x[r] + c, k);
    if constexpr (Norm::kCentered) return hn::Sub(v, mean[r]);
    return v;
  }
};

// Adds g * xc, and for layer norm g, over one pack of columns.
template <class Norm, bool kTame, int kRows, class T, class Extent>
HWY_INLINE void add_products(Extent extent, const RowSet<T, kRows>& rows, const Wide<T>* gamma, int64_t c,
                             Pack<Wide<T>>* gx, Pack<Wide<T>>* g) {
  DESCEND_UNROLL
  for (size_t k = 0; k < kPackVectors<Wide<T>>; ++k) {
    const auto gamma_k = load(extent, gamma + c, k);
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const auto g_k = hn::Mul(load(extent, rows.dy[r] + c, k), gamma_k);
      auto xc = rows.template load_centered<Norm>(extent, r, c, k);
      if constexpr (!kTame) xc = hn::Mul(xc, rows.rstd[r]);
      gx[r].v[k] = hn::MulAdd(g_k, xc, gx[r].v[k]);
      if constexpr (Norm::kCentered) g[r].v[k] = hn::Add(g[r].v[k], g_k);
    }
  }
}

// The sums of rows row, row + 1, ... over columns [begin, end), block by block. The first `asked` of the rows that lie
// `ahead` below are asked for meanwhile.
template <class Norm, bool kTame, int kRows, class T>
HWY_INLINE void row_sums(const NormBackward<T>& p, int64_t row, int64_t ahead, int asked, int64_t begin, int64_t end,
                         RowSums* sums) {
  using W = Wide<T>;
  constexpr int64_t kStep = kPackLanes<W>;
  const RowSet<T, kRows> set(p, row);
  const W* gamma = p.gamma;
  const int64_t dy_ahead = ahead * p.dy.stride, x_ahead = ahead * p.x.stride;
  RowSums total[kRows];
  for (int64_t block = begin; block < end; block += kBlock) {
    const int64_t stop = HWY_MIN(block + kBlock, end);
    DoubleLanes<W> gx_sum[kRows], g_sum[kRows];
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) gx_sum[r] = g_sum[r] = zero_lanes<W>();
    for (int64_t c = block; c < stop;) {
      Pack<W> gx[kRows], g[kRows];
      DESCEND_UNROLL
      for (int r = 0; r < kRows; ++r) gx[r] = g[r] = zero_pack<W>();
      const int64_t run_end = HWY_MIN(c + kRun * kStep, stop);
      for (; c + kStep <= run_end; c += kStep) {
        DESCEND_UNROLL
        for (int r = 0; r < kRows; ++r) {
          if (r >= asked) break;
          prefetch_pack(set.dy[r] + c, dy_ahead);
          prefetch_pack(set.x[r] + c, x_ahead);
        }
        add_products<Norm, kTame>(Full(), set, gamma, c, gx, g);
      }
      if (c < run_end) {
        add_products<Norm, kTame>(Part{static_cast<size_t>(run_end - c)}, set, gamma, c, gx, g);
        c = run_end;
      }
      DESCEND_UNROLL
      for (int r = 0; r < kRows; ++r) {
        add_lanes(gx[r], gx_sum[r]);
        if constexpr (Norm::kCentered) add_lanes(g[r], g_sum[r]);
      }
    }
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) {
      total[r].gx += fold(gx_sum[r]);
      if constexpr (Norm::kCentered) total[r].g += fold(g_sum[r]);
    }
  }
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) sums[r] = total[r];
}

// The first pass over a tile.
template <class Norm, class T>
HWY_INLINE void tile_sums(const NormBackward<T>& p, int64_t row, int64_t rows, int64_t ahead, int64_t begin,
                          int64_t end, RowSums* sums) {
  constexpr int kSet = Norm::kSumsAbreast;
  bool tame = true;
  for (int64_t r = 0; r < rows; ++r) tame = tame && is_tame(p.rstd[row + r]);
  int64_t r = 0;
  if (tame) {
    for (; r + kSet <= rows; r += kSet) {
      const int asked = ahead == 0 ? 0 : HWY_MAX(0, kAskedFirst - static_cast<int>(r % kAbreast));
      row_sums<Norm, true, kSet>(p, row + r, ahead, asked, begin, end, sums + r);
    }
  }
  for (; r < rows; ++r) {
    if (is_tame(p.rstd[row + r])) {
      row_sums<Norm, true, 1>(p, row + r, 0, 0, begin, end, sums + r);
    } else {
      row_sums<Norm, false, 1>(p, row + r, 0, 0, begin, end, sums + r);
    }
  }
}

// The column sums of a stripe, from the first column that is worked on.
template <class W>
struct ColumnSums {
  W* dgamma;
  W* dbeta;
};

template <bool kFresh, class W>
HWY_INLINE void add_columns_at(Vector<W> v, W* to) {
  const Tag<W> d;
  if constexpr (!kFresh) v = hn::Add(hn::Load(d, to), v);
  hn::Store(v, d, to);
}

// dx and column sums of two vectors of columns. A row's store must not come between the loads of the others: where rows
// are multiples of a page apart, the processor would hold these back.
template <class Norm, bool kTame, Output kOutput, bool kFresh, int kRows, class T, class Extent>
HWY_INLINE void apply_pair(Extent extent, const RowSet<T, kRows>& set, T* const* dx, const Vector<Wide<T>>* slope,
                           const Vector<Wide<T>>* offset, const Wide<T>* gamma, int64_t c, size_t pair,
                           const ColumnSums<Wide<T>>& columns) {
  using W = Wide<T>;
  Vector<W> result[kRows][2];
  DESCEND_UNROLL
  for (size_t i = 0; i < 2; ++i) {
    const size_t k = pair + i;
    const auto gamma_k = load(extent, gamma + c, k);
    auto dgamma = hn::Zero(Tag<W>()), dbeta = dgamma;
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const auto dy = load(extent, set.dy[r] + c, k);
      const auto xc = set.template load_centered<Norm>(extent, r, c, k);
      const auto factor = kTame ? xc : hn::Mul(xc, set.rstd[r]);
      const auto scaled = kTame ? hn::Mul(dy, set.rstd[r]) : dy;
      dgamma = hn::MulAdd(scaled, factor, dgamma);
      if constexpr (Norm::kCentered) dbeta = hn::Add(dbeta, dy);
      const auto mean_part = Norm::kCentered ? hn::MulAdd(factor, slope[r], offset[r]) : hn::Mul(factor, slope[r]);
      const auto difference = hn::MulSub(scaled, gamma_k, mean_part);
      result[r][i] = kTame ? difference : hn::Mul(set.rstd[r], difference);
    }
    const size_t first = k * kVectorLanes<W>;
    add_columns_at<kFresh>(dgamma, columns.dgamma + first);
    if constexpr (Norm::kCentered) add_columns_at<kFresh>(dbeta, columns.dbeta + first);
  }
  if constexpr (kOutput != Output::kNone) {
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) {
      store_pair<kOutput == Output::kStream, kTame>(extent, result[r][0], result[r][1], dx[r] + c, pair);
    }
  }
}

template <class Norm, bool kTame, Output kOutput, bool kFresh, int kRows, class T>
HWY_INLINE void apply_rows(const NormBackward<T>& p, int64_t row, int64_t ahead, int64_t begin, int64_t end,
                           const RowTerms<Wide<T>>* terms, ColumnSums<Wide<T>> columns) {
  using W = Wide<T>;
  constexpr int64_t kStep = kPackLanes<W>;
  const RowSet<T, kRows> set(p, row);
  const W* gamma = p.gamma;
  T* dx[kRows];
  Vector<W> slope[kRows], offset[kRows];
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) {
    dx[r] = kOutput == Output::kNone ? nullptr : p.dx.row(row + r);
    slope[r] = splat(terms[r].slope);
    offset[r] = splat(terms[r].offset);
  }
  const int64_t dy_ahead = ahead * p.dy.stride, x_ahead = ahead * p.x.stride;
  const auto apply = [&](auto extent, int64_t c) HWY_ATTR {
    DESCEND_UNROLL
    for (size_t k = 0; k < kPackVectors<W>; k += 2) {
      apply_pair<Norm, kTame, kOutput, kFresh>(extent, set, dx, slope, offset, gamma, c, k, columns);
    }
    columns.dgamma += kStep;
    columns.dbeta += kStep;
  };
  int64_t c = begin;
  for (; c + kStep <= end; c += kStep) {
    if (ahead != 0) {
      DESCEND_UNROLL
      for (int r = kAskedFirst; r < kRows; ++r) {
        prefetch_pack(set.dy[r] + c, dy_ahead);
        prefetch_pack(set.x[r] + c, x_ahead);
      }
    }
    apply(Full(), c);
  }
  if (c < end) apply(Part{static_cast<size_t>(end - c)}, c);
}

// The second pass over columns [begin, end) of a tile; the column sums are set (fresh) or increased.
template <class Norm, Output kOutput, class T>
HWY_INLINE void apply_tile(const NormBackward<T>& p, int64_t row, int64_t rows, int64_t ahead, int64_t begin,
                           int64_t end, const RowTerms<Wide<T>>* terms, bool fresh, ColumnSums<Wide<T>> columns) {
  bool tame = true;
  for (int64_t r = 0; r < rows; ++r) tame = tame && terms[r].tame;
  int64_t r = 0;
  if (tame) {
    if (fresh && rows >= kAbreast) {
      apply_rows<Norm, true, kOutput, true, kAbreast>(p, row, ahead, begin, end, terms, columns);
      r = kAbreast;
    }
    for (; r + kAbreast <= rows; r += kAbreast) {
      apply_rows<Norm, true, kOutput, false, kAbreast>(p, row + r, ahead, begin, end, terms + r, columns);
    }
  }
  if (r == 0 && fresh) {
    const size_t bytes = static_cast<size_t>(end - begin + kPackLanes<Wide<T>>) * sizeof(Wide<T>);
    std::memset(columns.dgamma, 0, bytes);
    if (Norm::kCentered) std::memset(columns.dbeta, 0, bytes);
  }
  for (; r < rows; ++r) {
    if (terms[r].tame) {
      apply_rows<Norm, true, kOutput, false, 1>(p, row + r, 0, begin, end, terms + r, columns);
    } else {
      apply_rows<Norm, false, kOutput, false, 1>(p, row + r, 0, begin, end, terms + r, columns);
    }
  }
}

template <class Norm, class T>
HWY_INLINE void add_stripe(const NormBackward<T>& p, const ColumnSums<Wide<T>>& columns, int64_t n, bool fresh,
                           int64_t place) {
  if (p.dgamma_slots != nullptr) add_columns(columns.dgamma, n, fresh, p.dgamma_slots + place);
  if (Norm::kCentered && p.dbeta_slots != nullptr) add_columns(columns.dbeta, n, fresh, p.dbeta_slots + place);
}

// Rows [first, last), tile by tile. Column sums run in the type of the arithmetic over one stripe, then go to the slot.
template <class Norm, Output kOutput, class T>
HWY_INLINE void all_rows(const NormBackward<T>& p, int64_t first, int64_t last, const RowCut& cut, int64_t slot) {
  constexpr int64_t kRoom = kStripeColumns + kPackLanes<Wide<T>>;
  HWY_ALIGN Wide<T> buffer[Norm::kCentered ? 2 * kRoom : kRoom];
  const ColumnSums<Wide<T>> columns{buffer, buffer + (Norm::kCentered ? kRoom : 0)};
  RowSums sums[kStripe] = {};
  RowTerms<Wide<T>> terms[kStripe];
  for (int64_t stripe = first; stripe < last; stripe += kStripe) {
    const int64_t stripe_end = HWY_MIN(stripe + kStripe, last);
    for (int64_t row = stripe; row < stripe_end; row += cut.tile) {
      const int64_t rows = HWY_MIN(cut.tile, stripe_end - row);
      const int64_t ahead = cut.prefetch && row + 2 * rows <= last ? rows : 0;
      if (kOutput != Output::kNone) tile_sums<Norm>(p, row, rows, ahead, 0, p.columns, sums);
      for (int64_t r = 0; r < rows; ++r) terms[r] = row_terms(p, row + r, sums[r]);
      apply_tile<Norm, kOutput>(p, row, rows, ahead, 0, p.columns, terms, row == stripe, columns);
    }
    add_stripe<Norm>(p, columns, p.columns, stripe == first, slot * p.columns);
  }
  if (kOutput == Output::kStream) flush_streams();
}

template <class Norm, Output kOutput, class T>
HWY_INLINE void one_block(const NormBackward<T>& p, int64_t row, int64_t rows, int64_t block,
                          const RowTerms<Wide<T>>* terms) {
  constexpr int64_t kRoom = kBlock + kPackLanes<Wide<T>>;
  HWY_ALIGN Wide<T> buffer[Norm::kCentered ? 2 * kRoom : kRoom];
  const ColumnSums<Wide<T>> columns{buffer, buffer + (Norm::kCentered ? kRoom : 0)};
  const int64_t begin = block * kBlock, end = HWY_MIN(begin + kBlock, p.columns);
  apply_tile<Norm, kOutput>(p, row, rows, 0, begin, end, terms, true, columns);
  if (kOutput == Output::kStream) flush_streams();
  add_stripe<Norm>(p, columns, end - begin, row == 0, begin);
}

// ---- What NormBackwardKernels points to.

template <class Norm, class T>
void norm_backward_rows(const NormBackward<T>& p, int64_t first, int64_t last, const RowCut& cut, int64_t slot,
                        bool stream) {
  if (stream) {
    all_rows<Norm, Output::kStream>(p, first, last, cut, slot);
  } else if (p.dx.data != nullptr) {
    all_rows<Norm, Output::kPlain>(p, first, last, cut, slot);
  } else if constexpr (Norm::kCentered) {
    all_rows<Norm, Output::kNone>(p, first, last, cut, slot);
  }
}

template <class Norm, class T>
void norm_backward_block_sums(const NormBackward<T>& p, int64_t row, int64_t rows, int64_t block, RowSums* sums) {
  const int64_t begin = block * kBlock;
  tile_sums<Norm>(p, row, rows, 0, begin, HWY_MIN(begin + kBlock, p.columns), sums);
}

template <class Norm, class T>
void norm_backward_block(const NormBackward<T>& p, int64_t row, int64_t rows, int64_t block,
                         const RowTerms<Wide<T>>* terms, bool stream) {
  if (stream) {
    one_block<Norm, Output::kStream>(p, row, rows, block, terms);
  } else if (p.dx.data != nullptr) {
    one_block<Norm, Output::kPlain>(p, row, rows, block, terms);
  } else if constexpr (Norm::kCentered) {
    one_block<Norm, Output::kNone>(p, row, rows, block, terms);
  }
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DESCEND_KERNELS_NORM_BACKWARD_INL_H_
