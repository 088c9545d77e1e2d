#include "kernels/rms_norm_grad.h"

#include <algorithm>

#include "kernels/cut.h"
#include "runtime/fp_environment.h"
#include "runtime/parallel.h"

#define HWY_TARGET_INCLUDE "kernels/rms_norm_grad.cpp"
#include "kernels/dispatch.h"
#include "kernels/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Rows that are worked on side by side share each load of gamma and of the column sums.
inline constexpr int kAbreast = 4;
// For the row sums each row takes a pack of accumulators: as many rows as the registers hold.
inline constexpr int kSumsAbreast = HWY_TARGET == HWY_AVX3 ? 4 : 2;

// Packs that are summed in one chain: short chains lose less to rounding.
inline constexpr int64_t kRun = 16;

// rstd * mean(g * xhat), by way of which dx = rstd * (g - x * scaled_mean): one rounding less than with xhat.
template <class T>
Wide<T> scaled_mean(const RmsNormGrad<T>& p, int64_t row, double sum) {
  return static_cast<Wide<T>>(sum / static_cast<double>(p.columns) * static_cast<double>(p.rstd[row]));
}

// acc[r] += g * xhat for one pack of columns of kRows rows
template <int kRows, class T, class Extent>
HWY_INLINE void add_products(Extent extent, const T* const* dy, const T* const* x, const Wide<T>* gamma,
                             const Vector<Wide<T>>* rstd, int64_t c, Pack<Wide<T>>* acc) {
  DESCEND_UNROLL
  for (size_t k = 0; k < kPackVectors<Wide<T>>; ++k) {
    const auto gamma_k = load(extent, gamma + c, k);
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const auto g = hn::Mul(load(extent, dy[r] + c, k), gamma_k);
      const auto xhat = hn::Mul(load(extent, x[r] + c, k), rstd[r]);
      acc[r].v[k] = hn::MulAdd(g, xhat, acc[r].v[k]);
    }
  }
}

// sums[r] = sum of g * xhat over columns [begin, end) of rows row, row + 1, ..., block by block. Unless `ahead` is 0,
// the row so far below the first is asked for meanwhile.
template <int kRows, class T>
HWY_INLINE void row_sums(const RmsNormGrad<T>& p, int64_t row, int64_t ahead, int64_t begin, int64_t end,
                         double* sums) {
  using W = Wide<T>;
  constexpr int64_t kStep = kPackLanes<W>;
  const W* gamma = p.gamma;
  const T* dy[kRows];
  const T* x[kRows];
  Vector<W> rstd[kRows];
  double total[kRows] = {};
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) {
    dy[r] = p.dy.row(row + r);
    x[r] = p.x.row(row + r);
    rstd[r] = splat(p.rstd[row + r]);
  }
  const int64_t dy_ahead = ahead * p.dy.stride;
  const int64_t x_ahead = ahead * p.x.stride;
  for (int64_t block = begin; block < end; block += kBlock) {
    const int64_t stop = HWY_MIN(block + kBlock, end);
    Pack<W> sum[kRows];
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) sum[r] = zero_pack<W>();
    for (int64_t c = block; c < stop;) {
      Pack<W> acc[kRows];
      DESCEND_UNROLL
      for (int r = 0; r < kRows; ++r) acc[r] = zero_pack<W>();
      const int64_t run_end = HWY_MIN(c + kRun * kStep, stop);
      for (; c + kStep <= run_end; c += kStep) {
        if (ahead != 0) {
          prefetch_pack(dy[0] + c, dy_ahead);
          prefetch_pack(x[0] + c, x_ahead);
        }
        add_products<kRows>(Full(), dy, x, gamma, rstd, c, acc);
      }
      if (c < run_end) {
        add_products<kRows>(Part{static_cast<size_t>(run_end - c)}, dy, x, gamma, rstd, c, acc);
        c = run_end;
      }
      DESCEND_UNROLL
      for (int r = 0; r < kRows; ++r) sum[r] = add(sum[r], acc[r]);
    }
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) total[r] += static_cast<double>(fold(sum[r]));
  }
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) sums[r] = total[r];
}

// The first pass over a tile. It is the shorter one and asks for the first row of each kAbreast of the next tile; the
// second asks for the others. Without that memory sits idle while they compute.
template <class T>
HWY_INLINE void tile_sums(const RmsNormGrad<T>& p, int64_t row, int64_t rows, int64_t ahead, int64_t begin, int64_t end,
                          double* sums) {
  int64_t r = 0;
  for (; r + kSumsAbreast <= rows; r += kSumsAbreast) {
    row_sums<kSumsAbreast>(p, row + r, r % kAbreast == 0 ? ahead : 0, begin, end, sums + r);
  }
  for (; r < rows; ++r) row_sums<1>(p, row + r, 0, begin, end, sums + r);
}

// dx of one pack of columns of kRows rows, and columns += dy * xhat
template <int kRows, bool kStream, bool kFresh, class T, class Extent>
HWY_INLINE void apply_pack(Extent extent, const T* const* dy, const T* const* x, T* const* dx, int64_t ahead,
                           int64_t dy_ahead, int64_t x_ahead, const Wide<T>* gamma, const Vector<Wide<T>>* rstd,
                           const Vector<Wide<T>>* scaled_mean, int64_t c, Wide<T>* columns) {
  using W = Wide<T>;
  const Pack<W> gamma_c = load_pack(extent, gamma + c);
  if (ahead != 0) {
    DESCEND_UNROLL
    for (int r = 1; r < kRows; ++r) {
      prefetch_pack(dy[r] + c, dy_ahead);
      prefetch_pack(x[r] + c, x_ahead);
    }
  }
  Pack<W> sums = zero_pack<W>();
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) {
    Pack<W> result;
    DESCEND_UNROLL
    for (size_t k = 0; k < kPackVectors<W>; ++k) {
      const auto dy_k = load(extent, dy[r] + c, k);
      const auto x_k = load(extent, x[r] + c, k);
      const auto g = hn::Mul(dy_k, gamma_c.v[k]);
      sums.v[k] = hn::MulAdd(dy_k, hn::Mul(x_k, rstd[r]), sums.v[k]);
      result.v[k] = hn::Mul(rstd[r], hn::NegMulAdd(x_k, scaled_mean[r], g));
    }
    store<kStream>(extent, result, dx[r] + c);
  }
  store(Full(), kFresh ? sums : add(load_pack(Full(), columns), sums), columns);
}

template <int kRows, bool kStream, bool kFresh, class T>
HWY_INLINE void apply_rows(const RmsNormGrad<T>& p, int64_t row, int64_t ahead, int64_t begin, int64_t end,
                           const Wide<T>* scaled_means, Wide<T>* columns) {
  using W = Wide<T>;
  constexpr int64_t kStep = kPackLanes<W>;
  const W* gamma = p.gamma;
  const T* dy[kRows];
  const T* x[kRows];
  T* dx[kRows];
  Vector<W> rstd[kRows], scaled_mean[kRows];
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) {
    dy[r] = p.dy.row(row + r);
    x[r] = p.x.row(row + r);
    dx[r] = p.dx.row(row + r);
    rstd[r] = splat(p.rstd[row + r]);
    scaled_mean[r] = splat(scaled_means[r]);
  }
  const int64_t dy_ahead = ahead * p.dy.stride;
  const int64_t x_ahead = ahead * p.x.stride;
  int64_t c = begin;
  for (; c + kStep <= end; c += kStep, columns += kStep) {
    apply_pack<kRows, kStream, kFresh>(Full(), dy, x, dx, ahead, dy_ahead, x_ahead, gamma, rstd, scaled_mean, c,
                                       columns);
  }
  if (c < end) {
    const Part part{static_cast<size_t>(end - c)};
    apply_pack<kRows, kStream, kFresh>(part, dy, x, dx, ahead, dy_ahead, x_ahead, gamma, rstd, scaled_mean, c, columns);
  }
}

// dx of columns [begin, end) of a tile whose scaled means are known; their column sums are set (fresh) or increased.
template <bool kStream, class T>
HWY_INLINE void apply_tile(const RmsNormGrad<T>& p, int64_t row, int64_t rows, int64_t ahead, int64_t begin,
                           int64_t end, const Wide<T>* scaled_means, bool fresh, Wide<T>* columns) {
  int64_t r = 0;
  if (fresh) {
    if (rows >= kAbreast) {
      apply_rows<kAbreast, kStream, true>(p, row, ahead, begin, end, scaled_means, columns);
      r = kAbreast;
    } else {
      apply_rows<1, kStream, true>(p, row, ahead, begin, end, scaled_means, columns);
      r = 1;
    }
  }
  for (; r + kAbreast <= rows; r += kAbreast) {
    apply_rows<kAbreast, kStream, false>(p, row + r, ahead, begin, end, scaled_means + r, columns);
  }
  for (; r < rows; ++r) apply_rows<1, kStream, false>(p, row + r, ahead, begin, end, scaled_means + r, columns);
}

// Rows [first, last), tile by tile. Column sums run in the type of the arithmetic over one stripe, then go to the slot.
template <bool kStream, class T>
HWY_INLINE void apply_all(const RmsNormGrad<T>& p, int64_t first, int64_t last, const RowCut& cut, double* slot) {
  HWY_ALIGN Wide<T> columns[kStripeColumns];
  double sums[kMaxStripe];
  Wide<T> scaled_means[kMaxStripe];
  for (int64_t stripe = first; stripe < last; stripe += kMaxStripe) {
    const int64_t stripe_end = HWY_MIN(stripe + kMaxStripe, last);
    for (int64_t row = stripe; row < stripe_end; row += cut.tile) {
      const int64_t rows = HWY_MIN(cut.tile, stripe_end - row);
      const int64_t ahead = cut.prefetch && row + 2 * rows <= last ? rows : 0;
      tile_sums(p, row, rows, ahead, 0, p.columns, sums);
      for (int64_t r = 0; r < rows; ++r) scaled_means[r] = scaled_mean(p, row + r, sums[r]);
      apply_tile<kStream>(p, row, rows, ahead, 0, p.columns, scaled_means, row == stripe, columns);
    }
    add_columns(columns, p.columns, stripe == first, slot);
  }
  if (kStream) flush_streams();
}

template <class T>
void rms_norm_grad_rows(const RmsNormGrad<T>& p, int64_t first, int64_t last, const RowCut& cut, double* slot,
                        bool stream) {
  stream ? apply_all<true>(p, first, last, cut, slot) : apply_all<false>(p, first, last, cut, slot);
}

// One block of columns of a group of rows: sums[r] is the block's part of row r's sum.
template <class T>
void rms_norm_grad_block_sums(const RmsNormGrad<T>& p, int64_t row, int64_t rows, int64_t block, double* sums) {
  const int64_t begin = block * kBlock;
  tile_sums(p, row, rows, 0, begin, HWY_MIN(begin + kBlock, p.columns), sums);
}

template <class T>
void rms_norm_grad_block(const RmsNormGrad<T>& p, int64_t row, int64_t rows, int64_t block, const Wide<T>* scaled_means,
                         bool stream) {
  HWY_ALIGN Wide<T> columns[kBlock];
  const int64_t begin = block * kBlock;
  const int64_t end = HWY_MIN(begin + kBlock, p.columns);
  if (stream) {
    apply_tile<true>(p, row, rows, 0, begin, end, scaled_means, true, columns);
    flush_streams();
  } else {
    apply_tile<false>(p, row, rows, 0, begin, end, scaled_means, true, columns);
  }
  add_columns(columns, end - begin, row == 0, p.dgamma_slots + begin);
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace descend::kernels {
namespace {

template <class T>
int64_t row_bytes(int64_t columns) {
  return 2 * columns * static_cast<int64_t>(sizeof(T));
}

template <class T>
void by_rows(const RmsNormGrad<T>& p, int64_t bytes, bool stream) {
  static const auto run = DESCEND_CHOOSE(rms_norm_grad_rows<T>);
  const RowCut cut = cut_rows(p.rows, row_bytes<T>(p.columns));
  parallel_for(cut.chunks, bytes, [&](int64_t chunk) {
    const int64_t first = chunk * cut.chunk;
    run(p, first, std::min(first + cut.chunk, p.rows), cut, p.dgamma_slots + chunk * p.columns, stream);
  });
}

// Few rows with many columns: the threads share a group of rows, each taking blocks of columns; one slot is enough.
template <class T>
void by_columns(const RmsNormGrad<T>& p, int64_t bytes, bool stream, double* sums) {
  static const auto block_sums = DESCEND_CHOOSE(rms_norm_grad_block_sums<T>);
  static const auto block = DESCEND_CHOOSE(rms_norm_grad_block<T>);
  const int64_t blocks = blocks_in(p.columns);
  const int64_t group = group_rows(row_bytes<T>(p.columns));
  for (int64_t row = 0; row < p.rows; row += group) {
    const int64_t rows = std::min(group, p.rows - row);
    const int64_t group_bytes = bytes / p.rows * rows;
    parallel_for(blocks, group_bytes, [&](int64_t b) { block_sums(p, row, rows, b, sums + b * rows); });
    Wide<T> scaled_means[kMaxStripe];
    {
      const FixedFpEnvironment environment;
      for (int64_t r = 0; r < rows; ++r) {
        double sum = 0;
        for (int64_t b = 0; b < blocks; ++b) sum += sums[b * rows + r];
        scaled_means[r] = HWY_STATIC_DISPATCH(scaled_mean)(p, row + r, sum);
      }
    }
    parallel_for(blocks, group_bytes, [&](int64_t b) { block(p, row, rows, b, scaled_means, stream); });
  }
}

}  // namespace

template <class T>
int64_t rms_norm_grad_slots(int64_t rows, int64_t columns) {
  return split_columns(rows, columns) ? 1 : cut_rows(rows, row_bytes<T>(columns)).chunks;
}

template <class T>
size_t rms_norm_grad_scratch(int64_t rows, int64_t columns) {
  if (!split_columns(rows, columns)) return 0;
  return static_cast<size_t>(blocks_in(columns) * std::min(group_rows(row_bytes<T>(columns)), rows)) * sizeof(double);
}

template <class T>
void rms_norm_grad(const RmsNormGrad<T>& p, void* scratch) {
  if (p.columns <= 0) return;
  if (p.rows <= 0) {
    std::fill_n(p.dgamma_slots, p.columns, 0.0);
    return;
  }
  const int64_t size = static_cast<int64_t>(sizeof(T));
  const int64_t bytes = 3 * p.rows * p.columns * size;
  const bool stream = stream_output(p.dx.data, p.dx.stride * size, bytes);
  if (split_columns(p.rows, p.columns)) {
    by_columns(p, bytes, stream, static_cast<double*>(scratch));
  } else {
    by_rows(p, bytes, stream);
  }
}

#define DESCEND_INSTANTIATE(T)                                             \
  template int64_t rms_norm_grad_slots<T>(int64_t rows, int64_t columns);  \
  template size_t rms_norm_grad_scratch<T>(int64_t rows, int64_t columns); \
  template void rms_norm_grad<T>(const RmsNormGrad<T>& problem, void* scratch);
DESCEND_INSTANTIATE(float16)
DESCEND_INSTANTIATE(bfloat16)
DESCEND_INSTANTIATE(float)
DESCEND_INSTANTIATE(double)

}  // namespace descend::kernels
#endif  // HWY_ONCE
