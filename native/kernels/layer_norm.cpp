#include "kernels/layer_norm.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cut.h"
#include "runtime/fp_environment.h"
#include "runtime/parallel.h"

#define HWY_TARGET_INCLUDE "kernels/layer_norm.cpp"
#include "kernels/dispatch.h"
#include "kernels/pack-inl.h"

namespace descend::kernels {
#ifndef DESCEND_LAYER_NORM_TYPES
#define DESCEND_LAYER_NORM_TYPES

// Of some columns of a row: their mean, and the sum of squared distances from it.
struct RowMoments {
  double mean;
  double squares;
};

// xhat = (x - centre) * rstd + level. Data farther from 0 than it is wide is brought near it first, where the
// difference is exact, and what the centre lacks of the mean goes into the level. Other data has centre 0: one rounding
// less.
template <class W>
struct RowScale {
  W centre;
  W level;
  W rstd;
  W mean;
};

template <class W>
RowScale<W> scale_of(double mean, double variance, double epsilon) {
  const W rstd = static_cast<W>(1.0 / std::sqrt(variance + epsilon));
  const W rounded = static_cast<W>(mean);
  const W centre = mean * mean < variance ? 0 : rounded;
  return {centre, static_cast<W>((static_cast<double>(centre) - mean) * static_cast<double>(rstd)), rstd, rounded};
}

// Blocks of a row whose columns are not split among threads.
inline constexpr int64_t kRowBlocks = kStripeColumns / kBlock;

#endif
}  // namespace descend::kernels

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// ---- Moments. Distances are taken from a point inside the data, so that nothing cancels however far from 0 it lies.

inline constexpr int kMomentsAbreast = HWY_TARGET == HWY_AVX3 ? 2 : 1;

// Packs that are summed in one chain: short chains lose less to rounding.
inline constexpr int64_t kMomentsRun = 16;

// Vector k of a pack with 0 in the lanes beyond the row.
template <class W>
HWY_INLINE Vector<W> in_row(Full, Vector<W> v, size_t) {
  return v;
}
template <class W>
HWY_INLINE Vector<W> in_row(Part part, Vector<W> v, size_t k) {
  const size_t first = k * kVectorLanes<W>;
  return hn::IfThenElseZero(hn::FirstN(Tag<W>(), part.n > first ? part.n - first : 0), v);
}

// Sums of the distances from a centre and of their squares.
struct Distances {
  double sum;
  double squares;
};

template <int kRows, class T, class Extent>
HWY_INLINE void add_distances(Extent extent, const T* const* x, int64_t c, const Vector<Wide<T>>* centre,
                              Pack<Wide<T>>* sum, Pack<Wide<T>>* squares) {
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) {
    DESCEND_UNROLL
    for (size_t k = 0; k < kPackVectors<Wide<T>>; ++k) {
      const auto distance = in_row<Wide<T>>(extent, hn::Sub(load(extent, x[r] + c, k), centre[r]), k);
      sum[r].v[k] = hn::Add(sum[r].v[k], distance);
      squares[r].v[k] = hn::MulAdd(distance, distance, squares[r].v[k]);
    }
  }
}

template <int kRows, class T>
HWY_INLINE void distances(const T* const* x, int64_t n, const Wide<T>* centres, Distances* result) {
  using W = Wide<T>;
  constexpr int64_t kStep = kPackLanes<W>;
  Vector<W> centre[kRows];
  Pack<W> sums[kRows], squares[kRows];
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) {
    centre[r] = splat(centres[r]);
    sums[r] = squares[r] = zero_pack<W>();
  }
  for (int64_t c = 0; c < n;) {
    Pack<W> run_sums[kRows], run_squares[kRows];
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) run_sums[r] = run_squares[r] = zero_pack<W>();
    const int64_t run_end = HWY_MIN(c + kMomentsRun * kStep, n);
    for (; c + kStep <= run_end; c += kStep) add_distances<kRows>(Full(), x, c, centre, run_sums, run_squares);
    if (c < run_end) {
      add_distances<kRows>(Part{static_cast<size_t>(run_end - c)}, x, c, centre, run_sums, run_squares);
      c = run_end;
    }
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) {
      sums[r] = add(sums[r], run_sums[r]);
      squares[r] = add(squares[r], run_squares[r]);
    }
  }
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) {
    result[r] = {static_cast<double>(fold(sums[r])), static_cast<double>(fold(squares[r]))};
  }
}

// Where distances or their squares leave the range of float, or are infinite.
template <class T>
HWY_INLINE RowMoments moments_in_double(const T* x, int64_t n) {
  HWY_ALIGN Wide<T> lanes[kPackLanes<Wide<T>>];
  constexpr int64_t kStep = kPackLanes<Wide<T>>;
  const auto add_up = [&](auto term) HWY_ATTR {
    double sum = 0;
    for (int64_t c = 0; c < n; c += kStep) {
      const int64_t count = HWY_MIN(kStep, n - c);
      store(Full(), load_pack(Part{static_cast<size_t>(count)}, x + c), lanes);
      for (int64_t i = 0; i < count; ++i) sum += term(static_cast<double>(lanes[i]));
    }
    return sum;
  };
  const double mean = add_up([](double v) { return v; }) / static_cast<double>(n);
  return {mean, add_up([mean](double v) { return (v - mean) * (v - mean); })};
}

HWY_INLINE RowMoments shift(double centre, double count, double sum, double squares) {
  const double least = squares - sum * sum / count;
  return {centre + sum / count, least < 0 ? 0 : least};
}

// Of n columns, at most a block. `tiny`: below it the sum of squares may have lost bits that count.
template <int kRows, class T>
HWY_INLINE void block_moments(const T* const* x, int64_t n, double tiny, RowMoments* moments) {
  using W = Wide<T>;
  const double count = static_cast<double>(n);
  const size_t first = static_cast<size_t>(HWY_MIN(n, static_cast<int64_t>(kPackLanes<W>)));
  W centre[kRows];
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) {
    centre[r] = static_cast<W>(static_cast<double>(fold(load_pack(Part{first}, x[r]))) / static_cast<double>(first));
  }
  Distances found[kRows];
  distances<kRows>(x, n, centre, found);
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) {
    auto [sum, squares] = found[r];
    if (sum * sum / count > 0.5 * squares) {  // the first columns lay far from the others: once more, from the mean
      centre[r] = static_cast<W>(static_cast<double>(centre[r]) + sum / count);
      Distances again;
      distances<1>(x + r, n, centre + r, &again);
      sum = again.sum;
      squares = again.squares;
    }
    moments[r] = shift(static_cast<double>(centre[r]), count, sum, squares);
    const bool exact = squares >= tiny && squares <= std::numeric_limits<double>::max();
    if (!exact) moments[r] = moments_in_double(x[r], n);
  }
}

template <class W>
double smallest_squares(double epsilon) {
  return sizeof(W) == sizeof(double) || epsilon > 0x1p-40 ? 0 : 0x1p-60;
}

// Columns [begin, end), a block or less, of rows row, row + 1, ...
template <class T>
HWY_INLINE void tile_moments(const LayerNorm<T>& p, int64_t row, int64_t rows, int64_t begin, int64_t end,
                             RowMoments* moments) {
  const double tiny = smallest_squares<Wide<T>>(p.epsilon);
  int64_t r = 0;
  for (; r + kMomentsAbreast <= rows; r += kMomentsAbreast) {
    const T* x[kMomentsAbreast];
    for (int i = 0; i < kMomentsAbreast; ++i) x[i] = p.x.row(row + r + i) + begin;
    block_moments<kMomentsAbreast>(x, end - begin, tiny, moments + r);
  }
  for (; r < rows; ++r) {
    const T* x = p.x.row(row + r) + begin;
    block_moments<1>(&x, end - begin, tiny, moments + r);
  }
}

template <class T>
RowScale<Wide<T>> layer_norm_scale(const LayerNorm<T>& p, const RowMoments* blocks, int64_t stride) {
  const int64_t count = blocks_in(p.columns);
  const double columns = static_cast<double>(p.columns);
  const auto size = [&](int64_t b) { return static_cast<double>(HWY_MIN(kBlock, p.columns - b * kBlock)); };
  double mean = blocks[0].mean, squares = blocks[0].squares;
  if (count > 1) {
    double sum = 0;
    for (int64_t b = 0; b < count; ++b) sum += blocks[b * stride].mean * size(b);
    mean = sum / columns;
    squares = 0;
    for (int64_t b = 0; b < count; ++b) {
      const double off = blocks[b * stride].mean - mean;
      squares += blocks[b * stride].squares + off * off * size(b);
    }
  }
  return scale_of<Wide<T>>(mean, squares / columns, p.epsilon);
}

// ---- The result.

template <bool kStream, class T, class Extent>
HWY_INLINE void apply_pack(Extent extent, const LayerNorm<T>& p, int64_t row, int64_t rows, int64_t ahead, int64_t c,
                           const RowScale<Wide<T>>* by) {
  using W = Wide<T>;
  const Pack<W> gamma = load_pack(extent, p.gamma + c), beta = load_pack(extent, p.beta + c);
  const T* x = p.x.row(row) + c;
  T* y = p.y.row(row) + c;
  for (int64_t r = 0; r < rows; ++r, x += p.x.stride, y += p.y.stride) {
    if (ahead != 0) prefetch_pack(x, ahead * p.x.stride);
    const auto centre = splat(by[r].centre), level = splat(by[r].level), rstd = splat(by[r].rstd);
    Pack<W> result;
    DESCEND_UNROLL
    for (size_t k = 0; k < kPackVectors<W>; ++k) {
      const auto xhat = hn::MulAdd(hn::Sub(load(extent, x, k), centre), rstd, level);
      result.v[k] = hn::MulAdd(xhat, gamma.v[k], beta.v[k]);
    }
    store<kStream>(extent, result, y);
  }
}

template <bool kStream, class T>
HWY_INLINE void apply_columns(const LayerNorm<T>& p, int64_t row, int64_t rows, int64_t ahead, int64_t begin,
                              int64_t end, const RowScale<Wide<T>>* by) {
  constexpr int64_t kStep = kPackLanes<Wide<T>>;
  int64_t c = begin;
  for (; c + kStep <= end; c += kStep) apply_pack<kStream>(Full(), p, row, rows, ahead, c, by);
  if (c < end) apply_pack<kStream>(Part{static_cast<size_t>(end - c)}, p, row, rows, ahead, c, by);
}

template <class T>
HWY_INLINE void store_statistics(const LayerNorm<T>& p, int64_t row, int64_t rows, const RowScale<Wide<T>>* by) {
  for (int64_t r = 0; r < rows; ++r) {
    if (p.mean != nullptr) p.mean[row + r] = by[r].mean;
    if (p.rstd != nullptr) p.rstd[row + r] = by[r].rstd;
  }
}

template <class T>
void layer_norm_rows(const LayerNorm<T>& p, int64_t first, int64_t last, const RowCut& cut, bool stream) {
  RowMoments moments[kRowBlocks * kMaxTile];
  RowScale<Wide<T>> by[kMaxTile];
  for (int64_t row = first; row < last; row += cut.tile) {
    const int64_t rows = HWY_MIN(cut.tile, last - row);
    const int64_t ahead = cut.prefetch && row + 2 * rows <= last ? rows : 0;
    for (int64_t b = 0; b * kBlock < p.columns; ++b) {
      tile_moments(p, row, rows, b * kBlock, HWY_MIN((b + 1) * kBlock, p.columns), moments + b * rows);
    }
    for (int64_t r = 0; r < rows; ++r) by[r] = layer_norm_scale(p, moments + r, rows);
    stream ? apply_columns<true>(p, row, rows, ahead, 0, p.columns, by)
           : apply_columns<false>(p, row, rows, ahead, 0, p.columns, by);
    store_statistics(p, row, rows, by);
  }
  if (stream) flush_streams();
}

template <class T>
void layer_norm_block_moments(const LayerNorm<T>& p, int64_t row, int64_t rows, int64_t block, RowMoments* moments) {
  tile_moments(p, row, rows, block * kBlock, HWY_MIN((block + 1) * kBlock, p.columns), moments);
}

template <class T>
void layer_norm_block(const LayerNorm<T>& p, int64_t row, int64_t rows, int64_t block, const RowScale<Wide<T>>* by,
                      bool stream) {
  const int64_t begin = block * kBlock, end = HWY_MIN(begin + kBlock, p.columns);
  stream ? apply_columns<true>(p, row, rows, 0, begin, end, by) : apply_columns<false>(p, row, rows, 0, begin, end, by);
  if (stream) flush_streams();
  if (block == 0) store_statistics(p, row, rows, by);
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace descend::kernels {
namespace {

template <class T>
void by_rows(const LayerNorm<T>& p, int64_t row_bytes, int64_t bytes, bool stream) {
  static const auto run = DESCEND_CHOOSE(layer_norm_rows<T>);
  const RowCut cut = cut_rows(p.rows, row_bytes);
  parallel_for(cut.chunks, bytes, [&](int64_t chunk) {
    const int64_t first = chunk * cut.chunk;
    run(p, first, std::min(first + cut.chunk, p.rows), cut, stream);
  });
}

// Few rows with many columns: the threads share a group of rows, each taking blocks of columns.
template <class T>
void by_columns(const LayerNorm<T>& p, int64_t row_bytes, int64_t bytes, bool stream, RowMoments* moments) {
  static const auto block_moments = DESCEND_CHOOSE(layer_norm_block_moments<T>);
  static const auto block = DESCEND_CHOOSE(layer_norm_block<T>);
  static const auto scale = DESCEND_CHOOSE(layer_norm_scale<T>);
  const int64_t blocks = blocks_in(p.columns), group = group_rows(row_bytes);
  for (int64_t row = 0; row < p.rows; row += group) {
    const int64_t rows = std::min(group, p.rows - row);
    const int64_t group_bytes = bytes / p.rows * rows;
    parallel_for(blocks, group_bytes, [&](int64_t b) { block_moments(p, row, rows, b, moments + b * rows); });
    RowScale<Wide<T>> by[kMaxGroupRows];
    {
      const FixedFpEnvironment environment;
      for (int64_t r = 0; r < rows; ++r) by[r] = scale(p, moments + r, rows);
    }
    parallel_for(blocks, group_bytes, [&](int64_t b) { block(p, row, rows, b, by, stream); });
  }
}

template <class T>
int64_t row_bytes(int64_t columns) {
  return columns * static_cast<int64_t>(sizeof(T));
}

}  // namespace

template <class T>
size_t layer_norm_scratch(int64_t rows, int64_t columns) {
  if (!split_columns(rows, columns)) return 0;
  return static_cast<size_t>(blocks_in(columns) * std::min(group_rows(row_bytes<T>(columns)), rows)) *
         sizeof(RowMoments);
}

template <class T>
void layer_norm(const LayerNorm<T>& p, void* scratch) {
  if (p.rows <= 0) return;
  if (p.columns <= 0) {
    if (p.mean != nullptr) std::fill_n(p.mean, p.rows, Wide<T>{0});
    if (p.rstd != nullptr) std::fill_n(p.rstd, p.rows, std::numeric_limits<Wide<T>>::quiet_NaN());
    return;
  }
  const int64_t one_row = row_bytes<T>(p.columns), bytes = 2 * p.rows * one_row;
  const bool stream = stream_output(p.y.data, p.y.stride * static_cast<int64_t>(sizeof(T)), bytes);
  if (split_columns(p.rows, p.columns)) {
    by_columns(p, one_row, bytes, stream, static_cast<RowMoments*>(scratch));
  } else {
    by_rows(p, one_row, bytes, stream);
  }
}

#define DESCEND_INSTANTIATE(T)                                          \
  template size_t layer_norm_scratch<T>(int64_t rows, int64_t columns); \
  template void layer_norm<T>(const LayerNorm<T>& problem, void* scratch);
DESCEND_INSTANTIATE(float16)
DESCEND_INSTANTIATE(bfloat16)
DESCEND_INSTANTIATE(float)
DESCEND_INSTANTIATE(double)

}  // namespace descend::kernels
#endif  // HWY_ONCE
