#include "kernels/layer_norm.h"

#include <algorithm>
#include <limits>

#include "kernels/cut.h"
#include "kernels/norm_rows.h"
#include "kernels/stores.h"
#include "runtime/fp_environment.h"
#include "runtime/parallel.h"

#define HWY_TARGET_INCLUDE "kernels/layer_norm.cpp"
#include "kernels/dispatch.h"
#include "kernels/norm_rows-inl.h"
#include "kernels/spread-inl.h"

namespace descend::kernels {
#ifndef DESCEND_LAYER_NORM_TYPES
#define DESCEND_LAYER_NORM_TYPES

// Of some columns of a tile's rows: their mean, and the sum of squared distances from it.
template <int64_t kRows = kMaxRows>
struct RowMoments {
  TileRow<double, kRows> mean;
  TileRow<double, kRows> squares;
};

// xhat = (x - centre) * rstd + level. Data farther from 0 than it is wide is brought near it first, where the
// difference is exact, and what the centre lacks of the mean goes into the level. Other data has centre 0: one rounding
// less.
template <class W, int64_t kRows = kMaxRows>
struct Scale {
  TileRow<W, kRows> centre;
  TileRow<W, kRows> level;
  TileRow<W, kRows> rstd;
  TileRow<W, kRows> mean;
};

// The moments of a block of the few rows that threads share.
using BlockMoments = RowMoments<kMaxGroupRows>;

#endif
}  // namespace descend::kernels

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// ---- Moments. Distances are taken from a point inside the data, so that nothing cancels however far from 0 it lies.

// Rows whose distances are summed side by side.
inline constexpr int kMomentsAbreast = HWY_TARGET == HWY_AVX3 ? 2 : 1;

// Packs that are summed in one chain: short chains lose less to rounding.
inline constexpr int64_t kMomentsRun = 16;

// Sums of the distances from a centre and of their squares.
template <class T>
struct Distances {
  HWY_INLINE Distances() {}  // as Pack's
  FoldedRows<T> sum;
  FoldedRows<T> squares;
};

template <int kRows, class T, class Extent>
HWY_INLINE void add_distances(Extent extent, const T* const* x, int64_t c, const Vector<Wide<T>>* centre,
                              Pack<Wide<T>>* sum, Pack<Wide<T>>* squares) {
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const SplitPack<T, Extent> pack(extent, x[r] + c);
    DESCEND_UNROLL
    for (size_t k = 0; k < kPackVectors<Wide<T>>; ++k) {
      if (!reaches<T>(extent, k)) break;
      const auto distance = in_row<T>(extent, hn::Sub(pack[k], centre[r]), k);
      sum[r].v[k] = hn::Add(sum[r].v[k], distance);
      squares[r].v[k] = hn::MulAdd(distance, distance, squares[r].v[k]);
    }
  }
}

// Of n columns of rows row, row + 1, ... of a tile.
template <int kRows, class T>
HWY_INLINE void row_distances(const Rows<const T>& tile, int64_t row, int64_t n, const TileRow<Wide<T>>& centres,
                              Distances<T>& found) {
  using W = Wide<T>;
  constexpr int64_t kStep = kPackLanes<W>;
  const Part tail = tail_of<W>(n);
  const T* x[kRows];
  Vector<W> centre[kRows];
  Pack<W> sums[kRows], squares[kRows];
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) {
    x[r] = tile.row(row + r);
    centre[r] = splat(centres.of[row + r]);
    sums[r] = squares[r] = zero_pack<W>();
  }
  const int64_t end = n - static_cast<int64_t>(tail.n);
  for (int64_t c = 0; c < n;) {
    Pack<W> run_sums[kRows], run_squares[kRows];
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) run_sums[r] = run_squares[r] = zero_pack<W>();
    const int64_t run_end = c + kMomentsRun * kStep;
    for (; c < HWY_MIN(run_end, end); c += kStep) add_distances<kRows>(Full(), x, c, centre, run_sums, run_squares);
    if (c < run_end) {
      if (tail.n != 0) add_distances<kRows>(tail, x, c, centre, run_sums, run_squares);
      c = n;
    }
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) {
      sums[r] = add(sums[r], run_sums[r]);
      squares[r] = add(squares[r], run_squares[r]);
    }
  }
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) {
    found.sum.set(row + r, sums[r]);
    found.squares.set(row + r, squares[r]);
  }
}

// Where distances or their squares leave the range of float, or are infinite.
template <class T>
HWY_INLINE void moments_in_double(const T* x, int64_t n, double& mean, double& squares) {
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
  mean = add_up([](double v) { return v; }) / static_cast<double>(n);
  squares = add_up([mean](double v) { return (v - mean) * (v - mean); });
}

// sums / n, for each row of a tile.
template <class W>
HWY_INLINE void divide(int64_t rows, int64_t n, TileRow<W>& sums) {
  const Divisor count(static_cast<double>(n));
  for (int64_t r = 0; r < rows; r += kVectorLanes<double>) {
    store_rounded(Tag<double>(), count(load_as_double(sums.of + r)), sums.of + r);
  }
}

// The mean of the first columns of each row.
template <class T>
HWY_INLINE void first_means(const Rows<const T>& x, int64_t rows, int64_t n, FoldedRows<T>& sums,
                            TileRow<Wide<T>>& means) {
  using W = Wide<T>;
  constexpr int64_t kStep = kPackLanes<W>;
  if (n >= kStep) {
    for (int64_t r = 0; r < rows; ++r) sums.set(r, load_split(Full(), x.row(r)));
  } else {
    for (int64_t r = 0; r < rows; ++r) sums.set(r, load_split(tail_of<W>(n), x.row(r)));
  }
  sums.fold(rows, means);
  divide(rows, HWY_MIN(n, kStep), means);
}

// Rows that fit a vector are folded as they are read: nothing is stored between.
template <class T>
HWY_INLINE void one_vector_sums(const Rows<const T>& x, int64_t rows, int64_t n, TileRow<Wide<T>>& centres,
                                TileRow<Wide<T>>& sums, TileRow<Wide<T>>& sums_of_squares) {
  const Part part{static_cast<size_t>(n)};
  const auto column = [&](int64_t r) DESCEND_INLINED { return load(part, x.row(r), 0); };
  const auto distance = [&](int64_t r)
                            DESCEND_INLINED { return in_row<T>(part, hn::Sub(column(r), splat(centres.of[r])), 0); };
  fold_each_row(rows, column, centres.of);
  divide(rows, n, centres);
  fold_each_row(rows, distance, sums.of);
  fold_each_row(
      rows,
      [&](int64_t r) DESCEND_INLINED {
        const auto v = distance(r);
        return hn::Mul(v, v);
      },
      sums_of_squares.of);
}

// Below it a sum of squares may have lost bits that count.
template <class W>
HWY_INLINE double tiny_squares(double epsilon) {
  return sizeof(W) == sizeof(double) || epsilon > 0x1p-40 ? 0 : 0x1p-60;
}

// Of n columns of row 0 of x, where the sums of distances from a first centre may not do.
template <class T>
HWY_NOINLINE void one_row_moments(const LayerNorm<T>& p, const Rows<const T>& x, int64_t n, double centre, double sum,
                                  double squares, double& mean_found, double& squares_found) {
  const double count = static_cast<double>(n);
  if (sum * sum / count > 0.5 * squares) {  // the first columns lay far from the others: once more, from the mean
    TileRow<Wide<T>> nearer, sums, sums_of_squares;
    nearer.of[0] = static_cast<Wide<T>>(centre + sum / count);
    Distances<T> again;
    row_distances<1>(x, 0, n, nearer, again);
    again.sum.fold(1, sums);
    again.squares.fold(1, sums_of_squares);
    centre = static_cast<double>(nearer.of[0]);
    sum = static_cast<double>(sums.of[0]);
    squares = static_cast<double>(sums_of_squares.of[0]);
  }
  if (squares >= tiny_squares<Wide<T>>(p.epsilon) && squares <= std::numeric_limits<double>::max()) {
    const double least = squares - sum * sum / count;
    mean_found = centre + sum / count;
    squares_found = least < 0 ? 0 : least;
  } else {
    moments_in_double(x.row(0), n, mean_found, squares_found);
  }
}

// Of n columns of a tile's rows, x, from the sums of their distances from the centres.
template <class T, int64_t kTile, int64_t kRows>
HWY_INLINE void moments_of(const LayerNorm<T>& p, const Rows<const T>& x, int64_t rows, int64_t n,
                           const TileRow<Wide<T>, kTile>& centres, const TileRow<Wide<T>, kTile>& sums,
                           const TileRow<Wide<T>, kTile>& sums_of_squares, RowMoments<kRows>& moments) {
  const Tag<double> d;
  const Divisor count(static_cast<double>(n));
  const auto tiny = splat(tiny_squares<Wide<T>>(p.epsilon)), most = splat(std::numeric_limits<double>::max());
  for (int64_t r = 0; r < rows; r += kVectorLanes<double>) {
    const auto centre = load_as_double(centres.of + r), sum = load_as_double(sums.of + r);
    const auto squares = load_as_double(sums_of_squares.of + r);
    const auto excess = count(hn::Mul(sum, sum)), least = hn::Sub(squares, excess);
    hn::Store(hn::Add(centre, count(sum)), d, moments.mean.of + r);
    hn::Store(hn::IfThenZeroElse(hn::Lt(least, hn::Zero(d)), least), d, moments.squares.of + r);
    const auto in_range = hn::And(hn::Ge(squares, tiny), hn::Le(squares, most));
    const auto near = hn::Le(excess, hn::Mul(splat(0.5), squares));
    if (all_of_rows(hn::And(in_range, near), rows - r)) continue;
    HWY_ALIGN double good[kVectorLanes<double>];
    hn::Store(hn::IfThenElseZero(hn::And(in_range, near), splat(1.0)), d, good);
    for (int64_t i = r; i < HWY_MIN(r + static_cast<int64_t>(kVectorLanes<double>), rows); ++i) {
      if (good[i - r] != 0) continue;
      one_row_moments<T>(p, {x.row(i), x.stride}, n, static_cast<double>(centres.of[i]),
                         static_cast<double>(sums.of[i]), static_cast<double>(sums_of_squares.of[i]),
                         moments.mean.of[i], moments.squares.of[i]);
    }
  }
}

// One block of rows row, row + 1, ...
template <class T, int64_t kRows>
HWY_INLINE void tile_moments(const LayerNorm<T>& p, int64_t row, int64_t rows, int64_t block, Distances<T>& distances,
                             RowMoments<kRows>& moments) {
  const int64_t begin = block * kBlock, n = HWY_MIN(kBlock, p.columns - begin);
  const Rows<const T> x{p.x.row(row) + begin, p.x.stride};
  TileRow<Wide<T>> centres, sums, sums_of_squares;
  if (fits_vector<T>(rows, n)) {
    one_vector_sums(x, rows, n, centres, sums, sums_of_squares);
    return moments_of(p, x, rows, n, centres, sums, sums_of_squares, moments);
  }
  first_means(x, rows, n, distances.sum, centres);
  int64_t r = 0;
  for (; r + kMomentsAbreast <= rows; r += kMomentsAbreast) {
    row_distances<kMomentsAbreast>(x, r, n, centres, distances);
  }
  for (; r < rows; ++r) row_distances<1>(x, r, n, centres, distances);
  distances.sum.fold(rows, sums);
  distances.squares.fold(rows, sums_of_squares);
  moments_of(p, x, rows, n, centres, sums, sums_of_squares, moments);
}

// From the moments of a tile's blocks.
template <class T, int64_t kRows = kMaxGroupRows, int64_t kTile = kMaxRows>
void layer_norm_scale(const LayerNorm<T>& p, int64_t rows, const RowMoments<kRows>* blocks, Scale<Wide<T>, kTile>& by) {
  using W = Wide<T>;
  const Tag<double> d;
  const int64_t count = blocks_in(p.columns);
  const Divisor columns(static_cast<double>(p.columns));
  const auto epsilon = splat(p.epsilon);
  const auto size = [&](int64_t b)
                        HWY_ATTR { return splat(static_cast<double>(HWY_MIN(kBlock, p.columns - b * kBlock))); };
  for (int64_t r = 0; r < rows; r += kVectorLanes<double>) {
    auto mean = hn::Load(d, blocks[0].mean.of + r), squares = hn::Load(d, blocks[0].squares.of + r);
    if (count > 1) {
      auto sum = hn::Zero(d);
      for (int64_t b = 0; b < count; ++b) {
        sum = hn::Add(sum, hn::Mul(hn::Load(d, blocks[b].mean.of + r), size(b)));
      }
      mean = columns(sum);
      squares = hn::Zero(d);
      for (int64_t b = 0; b < count; ++b) {
        const auto off = hn::Sub(hn::Load(d, blocks[b].mean.of + r), mean);
        const auto between = hn::Mul(hn::Mul(off, off), size(b));
        squares = hn::Add(squares, hn::Add(hn::Load(d, blocks[b].squares.of + r), between));
      }
    }
    const auto variance = columns(squares);
    const auto rstd = round_to<W>(hn::Div(splat(1.0), hn::Sqrt(hn::Add(variance, epsilon))));
    const auto rounded = round_to<W>(mean);
    const auto centre = hn::IfThenZeroElse(hn::Lt(hn::Mul(mean, mean), variance), rounded);
    store_rounded(d, centre, by.centre.of + r);
    store_rounded(d, hn::Mul(hn::Sub(centre, mean), rstd), by.level.of + r);
    store_rounded(d, rstd, by.rstd.of + r);
    store_rounded(d, rounded, by.mean.of + r);
  }
}

// ---- The result.

// Rows of results and what they are made of; gamma and beta are those of x's first column.
template <class T>
struct Applied {
  Rows<const T> x;
  Parameter<T> gamma;
  Parameter<T> beta;
  const Scale<Wide<T>>& by;
  int64_t rows;
  int64_t ahead;  // how far below are the rows to ask for; 0: none
  bool in_lines;
};

template <bool kStream, class T>
HWY_NOINLINE void apply_columns(const Applied<T>& from, int64_t n, const Rows<T>& y) {
  using W = Wide<T>;
  struct Terms {
    Vector<W> centre, level, rstd;
  };
  struct Beside {
    Pack<W> gamma, beta;
  };
  const int64_t ahead = from.ahead * from.x.stride;
  const Parameter<T> gamma = from.gamma, beta = from.beta;
  apply_to_packs<kStream>(
      from.in_lines, from.x, y, from.rows, n,
      [&](int64_t r) HWY_ATTR {
        return Terms{splat(from.by.centre.of[r]), splat(from.by.level.of[r]), splat(from.by.rstd.of[r])};
      },
      [&](auto extent, int64_t c) HWY_ATTR { return Beside{gamma.pack(extent, c), beta.pack(extent, c)}; },
      [&](auto extent, const T* x, T* to, const Terms& terms, const Beside& beside) HWY_ATTR {
        if (ahead != 0) prefetch_pack<prefetch_distant>(x, ahead);
        const SplitPack<T, decltype(extent)> pack(extent, x);
        Pack<W> result = zero_pack<W>();
        DESCEND_UNROLL
        for (size_t k = 0; k < kPackVectors<W>; ++k) {
          if (!reaches<T>(extent, k)) break;
          const auto xhat = hn::MulAdd(hn::Sub(pack[k], terms.centre), terms.rstd, terms.level);
          result.v[k] = hn::MulAdd(xhat, beside.gamma.v[k], beside.beta.v[k]);
        }
        store_split<kStream>(extent, result, to);
      });
}

// n columns of a tile; `to` is where they belong.
template <class T>
HWY_INLINE void apply_tile(const Applied<T>& from, int64_t n, const Rows<T>& to, Stores stores, TileStage<T>& stage) {
  store_rows(stores, to, from.rows, n, stage,
             [&](const Rows<T>& y, auto stream) HWY_ATTR { apply_columns<stream()>(from, n, y); });
}

template <class T, int64_t kRows>
HWY_INLINE void store_statistics(const LayerNorm<T>& p, int64_t row, int64_t rows, const Scale<Wide<T>, kRows>& by) {
  if (p.mean != nullptr) by.mean.copy(rows, p.mean + row);
  if (p.rstd != nullptr) by.rstd.copy(rows, p.rstd + row);
}

// Rows of very few columns: a tile of them as if they were one, but for their sums.
template <class T>
HWY_NOINLINE void layer_norm_narrow(const LayerNorm<T>& p, int64_t first, int64_t last) {
  using W = Wide<T>;
  constexpr int64_t kRows = kTileRows<W>;
  const Tag<W> d;
  HWY_ALIGN W tile[kTileRoom<W>];
  HWY_ALIGN W distances[kTileRoom<W>];
  TileRow<W, kRows> centres, sums, squares;
  RowMoments<kRows> moments;
  Scale<W, kRows> by;
  Spread<W> centre, level, rstd, gamma, beta;
  HWY_ALIGN W few[2][kPackLanes<W>];
  gamma.repeat(widened(p.gamma, p.columns, few[0]), HWY_MIN(kRows, last - first), p.columns);
  beta.repeat(widened(p.beta, p.columns, few[1]), HWY_MIN(kRows, last - first), p.columns);
  const Divisor columns(static_cast<double>(p.columns));
  const auto centred = [&](int64_t c, size_t k)
                           HWY_ATTR { return hn::Sub(hn::Load(d, tile + c + k * kVectorLanes<W>), centre.at(c, k)); };
  for (int64_t row = first; row < last; row += kRows) {
    const int64_t rows = HWY_MIN(kRows, last - row), n = rows * p.columns;
    const Rows<const T> x{p.x.row(row), p.x.stride};
    read_tile(x, rows, p.columns, tile);
    fold_narrow(tile, rows, p.columns, W{0}, Sum(), Sum(), centres.of);
    for_each_row_vector(rows, [&](int64_t r) HWY_ATTR {
      store_rounded(Tag<double>(), columns(load_as_double(centres.of + r)), centres.of + r);
    });
    centre.fill(centres.of, rows, p.columns);
    for_each_vector(n, distances, centred);
    fold_narrow(distances, rows, p.columns, W{0}, Sum(), Sum(), sums.of);
    fold_narrow(distances, rows, p.columns, W{0}, SumOfSquares(), Sum(), squares.of);
    moments_of(p, x, rows, p.columns, centres, sums, squares, moments);
    layer_norm_scale(p, rows, &moments, by);
    centre.fill(by.centre.of, rows, p.columns);
    level.fill(by.level.of, rows, p.columns);
    rstd.fill(by.rstd.of, rows, p.columns);
    for_each_vector(n, tile, [&](int64_t c, size_t k) HWY_ATTR {
      const auto xhat = hn::MulAdd(centred(c, k), rstd.at(c, k), level.at(c, k));
      return hn::MulAdd(xhat, gamma.at(c, k), beta.at(c, k));
    });
    write_tile<T>(tile, rows, p.columns, {p.y.row(row), p.y.stride});
    store_statistics(p, row, rows, by);
  }
}

// Bytes of a tile, at most: see tile_rows().
template <class T>
inline constexpr int64_t kTileBytes = int64_t{sizeof(T) == 2 ? 256 : 64} << 10;

// shared: see layer_norm_share(); null: rows are so short that each call does it anew.
template <class T>
HWY_NOINLINE void layer_norm_tiles(const LayerNorm<T>& p, int64_t first, int64_t last, const RowCut& cut, Stores stores,
                                   const Wide<T>* shared) {
  HWY_ALIGN Wide<T> rooms[2][parameter_room<T>(kMostOwnColumns<T>)];
  const Parameter<T> gamma = find_parameter<T>(p.gamma, p.columns, shared, rooms[0]);
  const Parameter<T> beta =
      find_parameter<T>(p.beta, p.columns, shared ? shared + parameter_room<T>(p.columns) : nullptr, rooms[1]);
  TileStage<T> stage;
  Distances<T> distances;
  RowMoments<> blocks[kMostRowColumns / kBlock];
  Scale<Wide<T>> by;
  const int64_t tile = tile_rows<kTileBytes<T>>(cut, p.y, p.columns, stores);
  for (int64_t row = first; row < last; row += tile) {
    const int64_t rows = HWY_MIN(tile, last - row);
    const int64_t ahead = cut.ask != Ask::kNothing && row + 2 * rows <= last ? rows : 0;
    if (stores == Stores::kStream) prefetch_shared(p.y.row(row), p.y.stride, rows, p.columns);
    for (int64_t b = 0; b < blocks_in(p.columns); ++b) tile_moments(p, row, rows, b, distances, blocks[b]);
    layer_norm_scale(p, rows, blocks, by);
    const Applied<T> from{{p.x.row(row), p.x.stride},         gamma, beta, by, rows, ahead,
                          goes_in_lines<T>(p.columns, stores)};
    apply_tile(from, p.columns, {p.y.row(row), p.y.stride}, stores, stage);
    store_statistics(p, row, rows, by);
  }
  stage.finish();
  if (stores != Stores::kPlain) flush_streams();
}

template <class T>
void layer_norm_rows(const LayerNorm<T>& p, int64_t first, int64_t last, const RowCut& cut, Stores stores,
                     const Wide<T>* shared) {
  if (p.columns <= kNarrowColumns) return layer_norm_narrow(p, first, last);
  if constexpr (kSplits<T>) {
    if (is_short(p)) return layer_norm_tiles(shortened(p), first, last, cut, stores, nullptr);
  }
  layer_norm_tiles(p, first, last, cut, stores, shared);
}

// Splits or widens a block of gamma and of beta for all rows to share.
template <class T>
void layer_norm_share(const LayerNorm<T>& p, int64_t block, Wide<T>* to) {
  share_block<T>(p.gamma, p.columns, block, to);
  share_block<T>(p.beta, p.columns, block, to + parameter_room<T>(p.columns));
}

template <class T>
void layer_norm_block_moments(const LayerNorm<T>& p, int64_t row, int64_t rows, int64_t block, BlockMoments& moments) {
  Distances<T> distances;
  tile_moments(p, row, rows, block, distances, moments);
}

template <class T>
void layer_norm_block(const LayerNorm<T>& p, int64_t row, int64_t rows, int64_t block, const Scale<Wide<T>>& by,
                      Stores stores, int64_t ahead) {
  const int64_t begin = block * kBlock, n = HWY_MIN(kBlock, p.columns - begin);
  HWY_ALIGN Wide<T> rooms[2][parameter_room<T>(kBlock)];
  const Parameter<T> gamma(p.gamma.from(begin), n, rooms[0]), beta(p.beta.from(begin), n, rooms[1]);
  TileStage<T> stage;
  const Applied<T> from{{p.x.row(row) + begin, p.x.stride}, gamma, beta, by, rows, ahead,
                        goes_in_lines<T>(p.columns, stores)};
  apply_tile(from, n, {p.y.row(row) + begin, p.y.stride}, stores, stage);
  stage.finish();
  if (stores != Stores::kPlain) flush_streams();
  if (block == 0) store_statistics(p, row, rows, by);
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace descend::kernels {
namespace {

// The moments of the blocks of a group's rows, then what is shared of the parameters; neither is always needed.
template <class T>
size_t moments_bytes(int64_t columns) {
  return may_split_loose_columns(columns) ? static_cast<size_t>(blocks_in(columns)) * sizeof(BlockMoments) : 0;
}

template <class T>
void by_rows(const LayerNorm<T>& p, int64_t row_bytes, Stores stores, Wide<T>* room) {
  static const auto run = DESCEND_CHOOSE(layer_norm_rows<T>);
  static const auto share = DESCEND_CHOOSE(layer_norm_share<T>);
  constexpr int64_t kOnce = 192;  // a row's mean and variance, in double
  // One thread waits for a row's mean and variance: shorter rows are not computed alone, and their tile waits once.
  constexpr int64_t kLeastAlone = int64_t{3} << 10;
  const int64_t work = row_work<T>(2 * p.columns, kOnce);
  const bool shared = shares_parameters<T>(p.columns);
  RowCut cut = cut_loose_rows(p.rows, row_bytes, work, shared ? 1 : kLeastChunkRows<T>);
  cut.near = stays_near(2 * p.rows * row_bytes);
  if (row_bytes < kLeastAlone && num_threads() == 1) cut.alone = false;
  if (shared) parallel_for(blocks_in(p.columns), 4 * row_bytes, [&](int64_t b) { share(p, b, room); });
  over_loose_rows(cut, p.rows, work,
                  [&](int64_t first, int64_t last) { run(p, first, last, cut, stores, shared ? room : nullptr); });
}

// Few rows with many columns: the threads share a group of rows, each taking blocks of columns.
template <class T>
void by_columns(const LayerNorm<T>& p, int64_t row_bytes, int64_t bytes, Stores stores, BlockMoments* moments) {
  static const auto block_moments = DESCEND_CHOOSE(layer_norm_block_moments<T>);
  static const auto block = DESCEND_CHOOSE(layer_norm_block<T>);
  static const auto scale = DESCEND_CHOOSE(layer_norm_scale<T>);
  const int64_t blocks = blocks_in(p.columns), group = group_rows(row_bytes),
                work = p.rows * row_work<T>(2 * p.columns);
  for (int64_t row = 0; row < p.rows; row += group) {
    const int64_t rows = std::min(group, p.rows - row);
    parallel_for(blocks, work, [&](int64_t b) { block_moments(p, row, rows, b, moments[b]); });
    Scale<Wide<T>> by;
    {
      const FixedFpEnvironment environment;
      scale(p, rows, moments, by);
    }
    const int64_t ahead = exceeds_kept(bytes) && row + 2 * rows <= p.rows ? rows : 0;
    parallel_for(blocks, work, [&](int64_t b) { block(p, row, rows, b, by, stores, ahead); });
  }
}

}  // namespace

template <class T>
size_t layer_norm_scratch(int64_t columns) {
  const int64_t room = shares_parameters<T>(columns) ? 2 * parameter_room<T>(columns) : 0;
  return moments_bytes<T>(columns) + static_cast<size_t>(room) * sizeof(Wide<T>);
}

template <class T>
void layer_norm(const LayerNorm<T>& p, void* scratch) {
  if (p.rows <= 0) return;
  if (p.columns <= 0) {
    if (p.mean != nullptr) std::fill_n(p.mean, p.rows, Wide<T>{0});
    if (p.rstd != nullptr) std::fill_n(p.rstd, p.rows, std::numeric_limits<Wide<T>>::quiet_NaN());
    return;
  }
  const int64_t one_row = p.columns * static_cast<int64_t>(sizeof(T)), bytes = 2 * p.rows * one_row;
  const Stores stores = norm_stores_of(p.y, p.columns, bytes);
  if (split_loose_columns(p.rows, p.columns, shares_parameters<T>(p.columns))) {
    by_columns(p, one_row, bytes, stores, static_cast<BlockMoments*>(scratch));
  } else {
    void* const room = static_cast<uint8_t*>(scratch) + moments_bytes<T>(p.columns);
    by_rows(p, one_row, stores, static_cast<Wide<T>*>(room));
  }
}

#define DESCEND_INSTANTIATE(T)                            \
  template size_t layer_norm_scratch<T>(int64_t columns); \
  template void layer_norm<T>(const LayerNorm<T>& problem, void* scratch);
DESCEND_INSTANTIATE(float16)
DESCEND_INSTANTIATE(bfloat16)
DESCEND_INSTANTIATE(float)
DESCEND_INSTANTIATE(double)

}  // namespace descend::kernels
#endif  // HWY_ONCE
