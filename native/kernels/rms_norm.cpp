#include "kernels/rms_norm.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cut.h"
#include "runtime/fp_environment.h"
#include "runtime/parallel.h"

#define HWY_TARGET_INCLUDE "kernels/rms_norm.cpp"
#include "kernels/dispatch.h"
#include "kernels/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

inline constexpr int kSquaresAbreast = HWY_TARGET == HWY_AVX3 ? 4 : 2;

template <int kRows, class T, class Extent>
HWY_INLINE void add_squares(Extent extent, const T* const* x, int64_t c, Pack<Wide<T>>* acc) {
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) {
    DESCEND_UNROLL
    for (size_t k = 0; k < kPackVectors<Wide<T>>; ++k) {
      const auto v = load(extent, x[r] + c, k);
      acc[r].v[k] = hn::MulAdd(v, v, acc[r].v[k]);
    }
  }
}

// sums[r] += sum of squares over each block of columns [begin, end) of rows row, row + 1, ...
template <int kRows, class T>
HWY_INLINE void row_squares(const RmsNorm<T>& p, int64_t row, int64_t begin, int64_t end, double* sums) {
  using W = Wide<T>;
  constexpr int64_t kStep = kPackLanes<W>;
  const T* x[kRows];
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) x[r] = p.x.row(row + r);
  for (int64_t block = begin; block < end; block += kBlock) {
    const int64_t stop = HWY_MIN(block + kBlock, end);
    Pack<W> acc[kRows];
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) acc[r] = zero_pack<W>();
    int64_t c = block;
    for (; c + kStep <= stop; c += kStep) add_squares<kRows>(Full(), x, c, acc);
    if (c < stop) add_squares<kRows>(Part{static_cast<size_t>(stop - c)}, x, c, acc);
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) sums[r] += static_cast<double>(fold(acc[r]));
  }
}

template <class T>
HWY_INLINE void tile_squares(const RmsNorm<T>& p, int64_t row, int64_t rows, int64_t begin, int64_t end, double* sums) {
  int64_t r = 0;
  for (; r + kSquaresAbreast <= rows; r += kSquaresAbreast)
    row_squares<kSquaresAbreast>(p, row + r, begin, end, sums + r);
  for (; r < rows; ++r) row_squares<1>(p, row + r, begin, end, sums + r);
}

template <class T, class Extent>
HWY_INLINE void add_squares_in_double(Extent extent, const T* x, Pack<double>& acc) {
  HWY_ALIGN float lanes[kPackLanes<float>];
  store(Full(), load_pack(extent, x), lanes);
  for (size_t i = 0; i < kPackLanes<float>; i += kPackLanes<double>) {
    for (size_t k = 0; k < kPackVectors<double>; ++k) {
      const auto v = load_as_double(lanes + i + k * kVectorLanes<double>);
      acc.v[k] = hn::MulAdd(v, v, acc.v[k]);
    }
  }
}

// The sum of one row's squares where they leave the range of float.
template <class T>
double rms_norm_squares_in_double(const RmsNorm<T>& p, int64_t row) {
  const T* x = p.x.row(row);
  constexpr int64_t kStep = kPackLanes<float>;
  Pack<double> acc = zero_pack<double>();
  int64_t c = 0;
  for (; c + kStep <= p.columns; c += kStep) add_squares_in_double(Full(), x + c, acc);
  if (c < p.columns) add_squares_in_double(Part{static_cast<size_t>(p.columns - c)}, x + c, acc);
  return fold(acc);
}

// 1 / rms of one row. Below the lower bound squares may have lost bits to underflow.
template <class T>
double rms_norm_rstd(const RmsNorm<T>& p, int64_t row, double sum) {
  if constexpr (sizeof(Wide<T>) == sizeof(float)) {
    if (!(sum >= 0x1p-60 && sum <= std::numeric_limits<double>::max())) sum = rms_norm_squares_in_double(p, row);
  }
  return 1.0 / std::sqrt(sum / static_cast<double>(p.columns) + p.epsilon);
}

template <bool kStream, class T, class Extent>
HWY_INLINE void scale_pack(Extent extent, const RmsNorm<T>& p, int64_t row, int64_t rows, int64_t ahead, int64_t c,
                           const Wide<T>* rstd) {
  using W = Wide<T>;
  const Pack<W> gamma = load_pack(extent, p.gamma + c);
  const T* x = p.x.row(row) + c;
  T* y = p.y.row(row) + c;
  for (int64_t r = 0; r < rows; ++r, x += p.x.stride, y += p.y.stride) {
    if (ahead != 0) prefetch_pack(x, ahead * p.x.stride);
    const auto rstd_r = splat(rstd[r]);
    Pack<W> result;
    DESCEND_UNROLL
    for (size_t k = 0; k < kPackVectors<W>; ++k) {
      result.v[k] = hn::Mul(hn::Mul(load(extent, x, k), rstd_r), gamma.v[k]);
    }
    store<kStream>(extent, result, y);
  }
}

template <bool kStream, class T>
HWY_INLINE void scale_columns(const RmsNorm<T>& p, int64_t row, int64_t rows, int64_t ahead, int64_t begin, int64_t end,
                              const Wide<T>* rstd) {
  constexpr int64_t kStep = kPackLanes<Wide<T>>;
  int64_t c = begin;
  for (; c + kStep <= end; c += kStep) scale_pack<kStream>(Full(), p, row, rows, ahead, c, rstd);
  if (c < end) scale_pack<kStream>(Part{static_cast<size_t>(end - c)}, p, row, rows, ahead, c, rstd);
}

template <class T>
void rms_norm_rows(const RmsNorm<T>& p, int64_t first, int64_t last, const RowCut& cut, bool stream) {
  for (int64_t row = first; row < last; row += cut.tile) {
    const int64_t rows = HWY_MIN(cut.tile, last - row);
    const int64_t ahead = cut.prefetch && row + 2 * rows <= last ? rows : 0;
    double sums[kMaxTile] = {};
    Wide<T> rstd[kMaxTile];
    tile_squares(p, row, rows, 0, p.columns, sums);
    for (int64_t r = 0; r < rows; ++r) rstd[r] = static_cast<Wide<T>>(rms_norm_rstd(p, row + r, sums[r]));
    if (stream) {
      scale_columns<true>(p, row, rows, ahead, 0, p.columns, rstd);
    } else {
      scale_columns<false>(p, row, rows, ahead, 0, p.columns, rstd);
    }
    for (int64_t r = 0; r < rows; ++r) p.rstd[row + r] = rstd[r];  // last: with one column it may be x's own memory
  }
  if (stream) flush_streams();
}

template <class T>
void rms_norm_block_squares(const RmsNorm<T>& p, int64_t row, int64_t rows, int64_t block, double* sums) {
  for (int64_t r = 0; r < rows; ++r) sums[r] = 0;
  tile_squares(p, row, rows, block * kBlock, HWY_MIN((block + 1) * kBlock, p.columns), sums);
}

template <class T>
void rms_norm_block(const RmsNorm<T>& p, int64_t row, int64_t rows, int64_t block, bool stream) {
  const int64_t begin = block * kBlock, end = HWY_MIN(begin + kBlock, p.columns);
  if (stream) {
    scale_columns<true>(p, row, rows, 0, begin, end, p.rstd + row);
    flush_streams();
  } else {
    scale_columns<false>(p, row, rows, 0, begin, end, p.rstd + row);
  }
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace descend::kernels {
namespace {

template <class T>
void by_rows(const RmsNorm<T>& p, int64_t row_bytes, int64_t bytes, bool stream) {
  static const auto run = DESCEND_CHOOSE(rms_norm_rows<T>);
  const RowCut cut = cut_rows(p.rows, row_bytes);
  parallel_for(cut.chunks, bytes, [&](int64_t chunk) {
    const int64_t first = chunk * cut.chunk;
    run(p, first, std::min(first + cut.chunk, p.rows), cut, stream);
  });
}

constexpr int64_t kMaxSums = 4096;

template <class T>
void by_columns(const RmsNorm<T>& p, int64_t row_bytes, int64_t bytes, bool stream) {
  static const auto block_squares = DESCEND_CHOOSE(rms_norm_block_squares<T>);
  static const auto block = DESCEND_CHOOSE(rms_norm_block<T>);
  static const auto rstd = DESCEND_CHOOSE(rms_norm_rstd<T>);
  const int64_t blocks = blocks_in(p.columns);
  const int64_t group = std::min(group_rows(row_bytes), kMaxSums / blocks);
  double sums[kMaxSums];
  for (int64_t row = 0; row < p.rows; row += group) {
    const int64_t rows = std::min(group, p.rows - row);
    const int64_t group_bytes = bytes / p.rows * rows;
    parallel_for(blocks, group_bytes, [&](int64_t b) { block_squares(p, row, rows, b, sums + b * rows); });
    {
      const FixedFpEnvironment environment;
      for (int64_t r = 0; r < rows; ++r) {
        double sum = 0;
        for (int64_t b = 0; b < blocks; ++b) sum += sums[b * rows + r];
        p.rstd[row + r] = static_cast<Wide<T>>(rstd(p, row + r, sum));
      }
    }
    parallel_for(blocks, group_bytes, [&](int64_t b) { block(p, row, rows, b, stream); });
  }
}

}  // namespace

template <class T>
void rms_norm(const RmsNorm<T>& p) {
  if (p.rows <= 0) return;
  if (p.columns <= 0) {
    std::fill_n(p.rstd, p.rows, std::numeric_limits<Wide<T>>::quiet_NaN());  // the mean of nothing
    return;
  }
  const int64_t size = static_cast<int64_t>(sizeof(T));
  const int64_t row_bytes = p.columns * size;
  const int64_t bytes = 2 * p.rows * row_bytes;
  const bool stream = stream_output(p.y.data, p.y.stride * size, bytes);
  if (split_columns(p.rows, p.columns) && blocks_in(p.columns) <= kMaxSums) {
    by_columns(p, row_bytes, bytes, stream);
  } else {
    by_rows(p, row_bytes, bytes, stream);
  }
}

template void rms_norm<float16>(const RmsNorm<float16>& problem);
template void rms_norm<bfloat16>(const RmsNorm<bfloat16>& problem);
template void rms_norm<float>(const RmsNorm<float>& problem);
template void rms_norm<double>(const RmsNorm<double>& problem);

}  // namespace descend::kernels
#endif  // HWY_ONCE
