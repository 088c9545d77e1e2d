#include "kernels/rms_norm_grad.h"

#include <algorithm>

#include "kernels/cut.h"
#include "runtime/fp_environment.h"
#include "runtime/parallel.h"

#define HWY_TARGET_INCLUDE "kernels/rms_norm_grad.cpp"
#include "kernels/dispatch.h"
#include "hwy/highway.h"
#include "kernels/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Rows whose sums are formed side by side: as many accumulators as registers allow.
inline constexpr int kRowsAbreast = HWY_TARGET == HWY_AVX3 ? 4 : 2;

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

// sums[r] += sum of g * xhat over each block of columns [begin, end) of rows row, row + 1, ...
template <int kRows, class T>
HWY_INLINE void row_sums(const RmsNormGrad<T>& p, int64_t row, int64_t begin, int64_t end, double* sums) {
  using W = Wide<T>;
  constexpr int64_t kStep = kPackLanes<W>;
  const T* dy[kRows];
  const T* x[kRows];
  Vector<W> rstd[kRows];
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) {
    dy[r] = p.dy.row(row + r);
    x[r] = p.x.row(row + r);
    rstd[r] = splat(p.rstd[row + r]);
  }
  for (int64_t block = begin; block < end; block += kBlock) {
    const int64_t stop = HWY_MIN(block + kBlock, end);
    Pack<W> acc[kRows];
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) acc[r] = zero_pack<W>();
    int64_t c = block;
    for (; c + kStep <= stop; c += kStep) add_products<kRows>(Full(), dy, x, p.gamma, rstd, c, acc);
    if (c < stop) add_products<kRows>(Part{static_cast<size_t>(stop - c)}, dy, x, p.gamma, rstd, c, acc);
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) sums[r] += static_cast<double>(fold(acc[r]));
  }
}

template <class T>
HWY_INLINE void tile_sums(const RmsNormGrad<T>& p, int64_t row, int64_t rows, int64_t begin, int64_t end, double* sums) {
  int64_t r = 0;
  for (; r + kRowsAbreast <= rows; r += kRowsAbreast) row_sums<kRowsAbreast>(p, row + r, begin, end, sums + r);
  for (; r < rows; ++r) row_sums<1>(p, row + r, begin, end, sums + r);
}

// dx and the column sums of one pack of columns of a tile, whose means are known. `ahead`: rows to prefetch, from the next tile.
template <bool kStream, bool kFirst, class T, class Extent>
HWY_INLINE void apply_pack(Extent extent, const RmsNormGrad<T>& p, int64_t row, int64_t rows, int64_t ahead, int64_t c,
                           const Wide<T>* means, double* sums) {
  using W = Wide<T>;
  const Pack<W> gamma = load_pack(extent, p.gamma + c);
  Pack<W> columns = zero_pack<W>();
  const T* dy = p.dy.row(row) + c;
  const T* x = p.x.row(row) + c;
  T* dx = p.dx.row(row) + c;
  for (int64_t r = 0; r < rows; ++r, dy += p.dy.stride, x += p.x.stride, dx += p.dx.stride) {
    if (r < ahead) {
      prefetch_pack(dy + rows * p.dy.stride);
      prefetch_pack(x + rows * p.x.stride);
    }
    const auto rstd = splat(p.rstd[row + r]);
    const auto mean = splat(means[r]);
    Pack<W> result;
    DESCEND_UNROLL
    for (size_t k = 0; k < kPackVectors<W>; ++k) {
      const auto dy_k = load(extent, dy, k);
      const auto xhat = hn::Mul(load(extent, x, k), rstd);
      const auto g = hn::Mul(dy_k, gamma.v[k]);
      columns.v[k] = hn::MulAdd(dy_k, xhat, columns.v[k]);
      result.v[k] = hn::Mul(rstd, hn::NegMulAdd(xhat, mean, g));
    }
    store<kStream>(extent, result, dx);
  }
  store_double<!kFirst>(extent, columns, sums + c);
}

template <bool kStream, bool kFirst, class T>
HWY_INLINE void apply_columns(const RmsNormGrad<T>& p, int64_t row, int64_t rows, int64_t ahead, int64_t begin, int64_t end,
                              const Wide<T>* means, double* sums) {
  constexpr int64_t kStep = kPackLanes<Wide<T>>;
  int64_t c = begin;
  for (; c + kStep <= end; c += kStep) apply_pack<kStream, kFirst>(Full(), p, row, rows, ahead, c, means, sums);
  if (c < end) {
    apply_pack<kStream, kFirst>(Part{static_cast<size_t>(end - c)}, p, row, rows, ahead, c, means, sums);
  }
}

template <class T>
HWY_INLINE void apply(const RmsNormGrad<T>& p, int64_t row, int64_t rows, int64_t ahead, int64_t begin, int64_t end,
                      const Wide<T>* means, double* sums, bool stream, bool first) {
  if (stream) {
    first ? apply_columns<true, true>(p, row, rows, ahead, begin, end, means, sums)
          : apply_columns<true, false>(p, row, rows, ahead, begin, end, means, sums);
  } else {
    first ? apply_columns<false, true>(p, row, rows, ahead, begin, end, means, sums)
          : apply_columns<false, false>(p, row, rows, ahead, begin, end, means, sums);
  }
}

// Rows [first, last), tile by tile; their column sums to one slot.
template <class T>
void rms_norm_grad_rows(const RmsNormGrad<T>& p, int64_t first, int64_t last, int64_t tile, double* slot, bool stream) {
  for (int64_t row = first; row < last; row += tile) {
    const int64_t rows = HWY_MIN(tile, last - row);
    const int64_t ahead = HWY_MIN(rows, last - row - rows);
    double sums[kMaxTile] = {};
    Wide<T> means[kMaxTile];
    tile_sums(p, row, rows, 0, p.columns, sums);
    for (int64_t r = 0; r < rows; ++r) means[r] = static_cast<Wide<T>>(sums[r] / static_cast<double>(p.columns));
    apply(p, row, rows, ahead, 0, p.columns, means, slot, stream, row == first);
  }
  if (stream) flush_streams();
}

// One block of columns of a tile: sums[r] is the block's part of row r's sum.
template <class T>
void rms_norm_grad_block_sums(const RmsNormGrad<T>& p, int64_t row, int64_t rows, int64_t block, double* sums) {
  for (int64_t r = 0; r < rows; ++r) sums[r] = 0;
  tile_sums(p, row, rows, block * kBlock, HWY_MIN((block + 1) * kBlock, p.columns), sums);
}

template <class T>
void rms_norm_grad_block(const RmsNormGrad<T>& p, int64_t row, int64_t rows, int64_t block, const Wide<T>* means,
                         bool stream) {
  apply(p, row, rows, 0, block * kBlock, HWY_MIN((block + 1) * kBlock, p.columns), means, p.dgamma_slots, stream, row == 0);
  if (stream) flush_streams();
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
    run(p, first, std::min(first + cut.chunk, p.rows), cut.tile, p.dgamma_slots + chunk * p.columns, stream);
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
    Wide<T> means[kMaxTile];
    {
      const FixedFpEnvironment environment;
      for (int64_t r = 0; r < rows; ++r) {
        double sum = 0;
        for (int64_t b = 0; b < blocks; ++b) sum += sums[b * rows + r];
        means[r] = static_cast<Wide<T>>(sum / static_cast<double>(p.columns));
      }
    }
    parallel_for(blocks, group_bytes, [&](int64_t b) { block(p, row, rows, b, means, stream); });
  }
}

}  // namespace

template <class T>
int64_t rms_norm_grad_slots(int64_t rows, int64_t columns) {
  return split_columns(rows, columns, row_bytes<T>(columns)) ? 1 : cut_rows(rows, row_bytes<T>(columns)).chunks;
}

template <class T>
size_t rms_norm_grad_scratch(int64_t rows, int64_t columns) {
  if (!split_columns(rows, columns, row_bytes<T>(columns))) return 0;
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
  const int64_t output_bytes = p.rows * p.columns * size;
  const int64_t bytes = 3 * output_bytes;
  const bool stream = stream_output(p.dx.data, p.dx.stride * size, output_bytes, bytes);
  if (split_columns(p.rows, p.columns, row_bytes<T>(p.columns))) {
    by_columns(p, bytes, stream, static_cast<double*>(scratch));
  } else {
    by_rows(p, bytes, stream);
  }
}

#define DESCEND_INSTANTIATE(T)                                            \
  template int64_t rms_norm_grad_slots<T>(int64_t rows, int64_t columns);  \
  template size_t rms_norm_grad_scratch<T>(int64_t rows, int64_t columns); \
  template void rms_norm_grad<T>(const RmsNormGrad<T>& problem, void* scratch);
DESCEND_INSTANTIATE(float16)
DESCEND_INSTANTIATE(bfloat16)
DESCEND_INSTANTIATE(float)
DESCEND_INSTANTIATE(double)

}  // namespace descend::kernels
#endif  // HWY_ONCE
