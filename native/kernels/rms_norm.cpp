#include "kernels/rms_norm.h"

#include <algorithm>
#include <limits>

#include "kernels/cut.h"
#include "kernels/norm_rows.h"
#include "kernels/stores.h"
#include "runtime/fp_environment.h"
#include "runtime/parallel.h"

#define HWY_TARGET_INCLUDE "kernels/rms_norm.cpp"
#include "kernels/dispatch.h"
#include "kernels/norm_rows-inl.h"
#include "kernels/spread-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Rows whose squares are summed side by side.
inline constexpr int kSquaresAbreast = HWY_TARGET == HWY_AVX3 ? 4 : 2;

// A smaller sum of squares in float may have lost bits to underflow.
inline constexpr double kLeastSquares = 0x1p-60;

template <int kRows, class T, class Extent>
HWY_INLINE void add_squares(Extent extent, const T* const* x, int64_t c, Pack<Wide<T>>* acc) {
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const SplitPack<T, Extent> pack(extent, x[r] + c);
    DESCEND_UNROLL
    for (size_t k = 0; k < kPackVectors<Wide<T>>; ++k) {
      if (!reaches<T>(extent, k)) break;
      const auto v = pack[k];
      acc[r].v[k] = hn::MulAdd(v, v, acc[r].v[k]);
    }
  }
}

// Squares of n columns of rows row, row + 1, ... of a tile.
template <int kRows, class T>
HWY_INLINE void row_squares(const Rows<const T>& x, int64_t row, int64_t n, FoldedRows<T>& squares) {
  using W = Wide<T>;
  constexpr int64_t kStep = kPackLanes<W>;
  const Part tail = tail_of<W>(n);
  const T* rows[kRows];
  Pack<W> acc[kRows];
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) {
    rows[r] = x.row(row + r);
    acc[r] = zero_pack<W>();
  }
  int64_t c = 0;
  for (; c + kStep <= n; c += kStep) add_squares<kRows>(Full(), rows, c, acc);
  if (tail.n != 0) add_squares<kRows>(tail, rows, c, acc);
  DESCEND_UNROLL
  for (int r = 0; r < kRows; ++r) squares.set(row + r, acc[r]);
}

// The sums of squares of a tile's rows over each block of columns [begin, end), added up.
template <class T>
HWY_INLINE void tile_squares(const RmsNorm<T>& p, int64_t row, int64_t rows, int64_t begin, int64_t end,
                             FoldedRows<T>& squares, TileRow<double>& sums) {
  const Tag<double> d;
  for_each_row_vector(rows, [&](int64_t r) HWY_ATTR { hn::Store(hn::Zero(d), d, sums.of + r); });
  for (int64_t block = begin; block < end; block += kBlock) {
    const Rows<const T> x{p.x.row(row) + block, p.x.stride};
    const int64_t n = HWY_MIN(kBlock, end - block);
    TileRow<Wide<T>> found;
    if (fits_vector<T>(rows, n)) {
      const Part part{static_cast<size_t>(n)};
      fold_each_row(
          rows,
          [&](int64_t r) DESCEND_INLINED {
            const auto v = load(part, x.row(r), 0);
            return hn::Mul(v, v);
          },
          found.of);
    } else {
      int64_t r = 0;
      for (; r + kSquaresAbreast <= rows; r += kSquaresAbreast) row_squares<kSquaresAbreast>(x, r, n, squares);
      for (; r < rows; ++r) row_squares<1>(x, r, n, squares);
      squares.fold(rows, found);
    }
    for_each_row_vector(rows, [&](int64_t i) HWY_ATTR {
      hn::Store(hn::Add(hn::Load(d, sums.of + i), load_as_double(found.of + i)), d, sums.of + i);
    });
  }
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

// The sum of one row's squares: `sum`, if it has not left the range of float.
template <class T>
double exact_squares(const RmsNorm<T>& p, int64_t row, double sum) {
  if (sum >= kLeastSquares && sum <= std::numeric_limits<double>::max()) return sum;
  const T* x = p.x.row(row);
  constexpr int64_t kStep = kPackLanes<float>;
  Pack<double> acc = zero_pack<double>();
  int64_t c = 0;
  for (; c + kStep <= p.columns; c += kStep) add_squares_in_double(Full(), x + c, acc);
  if (c < p.columns) add_squares_in_double(Part{static_cast<size_t>(p.columns - c)}, x + c, acc);
  return fold(acc);
}

// 1 / rms of a tile's rows from the sums of their squares.
template <class T, int64_t kRows>
HWY_INLINE void tile_rstd(const RmsNorm<T>& p, int64_t row, int64_t rows, TileRow<double, kRows>& sums,
                          TileRow<Wide<T>, kRows>& rstd) {
  const Tag<double> d;
  const Divisor columns(static_cast<double>(p.columns));
  const auto epsilon = splat(p.epsilon), one = splat(1.0);
  for (int64_t r = 0; r < rows; r += kVectorLanes<double>) {
    auto sum = hn::Load(d, sums.of + r);
    if constexpr (sizeof(Wide<T>) == sizeof(float)) {
      const auto exact =
          hn::And(hn::Ge(sum, splat(kLeastSquares)), hn::Le(sum, splat(std::numeric_limits<double>::max())));
      if (!all_of_rows(exact, rows - r)) {
        const int64_t end = HWY_MIN(r + static_cast<int64_t>(kVectorLanes<double>), rows);
        for (int64_t i = r; i < end; ++i) sums.of[i] = exact_squares(p, row + i, sums.of[i]);
        sum = hn::Load(d, sums.of + r);
      }
    }
    store_rounded(d, hn::Div(one, hn::Sqrt(hn::Add(columns(sum), epsilon))), rstd.of + r);
  }
}

// ---- The result.

// Columns [begin, end) of a tile; gamma is that of column begin. ahead: how far below are the rows to ask for; 0: none.
template <class T>
HWY_INLINE void scale_tile(const RmsNorm<T>& p, int64_t row, int64_t rows, int64_t ahead, int64_t begin, int64_t end,
                           const Parameter<T>& gamma, const Wide<T>* rstd, Stores stores, TileStage<T>& stage) {
  using W = Wide<T>;
  const Rows<const T> x{p.x.row(row) + begin, p.x.stride};
  const Rows<T> result{p.y.row(row) + begin, p.y.stride};
  const int64_t n = end - begin, distance = ahead * x.stride;
  const bool in_lines = goes_in_lines<T>(p.columns, stores);
  store_rows(stores, result, rows, n, stage, [=](const Rows<T>& y, auto stream) HWY_ATTR {
    apply_to_packs<decltype(stream)::value>(
        in_lines, x, y, rows, n, [=](int64_t r) HWY_ATTR { return splat(rstd[r]); },
        [=](auto extent, int64_t c) HWY_ATTR { return gamma.pack(extent, c); },
        [=](auto extent, const T* from, T* to, const Vector<W>& by, const Pack<W>& beside) HWY_ATTR {
          if (distance != 0) prefetch_pack<prefetch_distant>(from, distance);
          const SplitPack<T, decltype(extent)> pack(extent, from);
          Pack<W> scaled = zero_pack<W>();
          DESCEND_UNROLL
          for (size_t k = 0; k < kPackVectors<W>; ++k) {
            if (!reaches<T>(extent, k)) break;
            scaled.v[k] = hn::Mul(hn::Mul(pack[k], by), beside.v[k]);
          }
          store_split<stream()>(extent, scaled, to);
        });
  });
}

// Rows of very few columns: a tile of them as if they were one, but for their sums.
template <class T>
HWY_NOINLINE void rms_norm_narrow(const RmsNorm<T>& p, int64_t first, int64_t last) {
  using W = Wide<T>;
  constexpr int64_t kRows = kTileRows<W>;
  HWY_ALIGN W tile[kTileRoom<W>];
  TileRow<W, kRows> squares, rstd;
  TileRow<double, kRows> sums;
  Spread<W> rstds, gamma;
  HWY_ALIGN W few[kPackLanes<W>];
  gamma.repeat(widened(p.gamma, p.columns, few), HWY_MIN(kRows, last - first), p.columns);
  for (int64_t row = first; row < last; row += kRows) {
    const int64_t rows = HWY_MIN(kRows, last - row);
    read_tile<T>({p.x.row(row), p.x.stride}, rows, p.columns, tile);
    fold_narrow(tile, rows, p.columns, W{0}, SumOfSquares(), Sum(), squares.of);
    for_each_row_vector(
        rows, [&](int64_t r) HWY_ATTR { hn::Store(load_as_double(squares.of + r), Tag<double>(), sums.of + r); });
    tile_rstd(p, row, rows, sums, rstd);
    rstds.fill(rstd.of, rows, p.columns);
    for_each_vector(rows * p.columns, tile, [&](int64_t c, size_t k) HWY_ATTR {
      const auto x = hn::Load(Tag<W>(), tile + c + k * kVectorLanes<W>);
      return hn::Mul(hn::Mul(x, rstds.at(c, k)), gamma.at(c, k));
    });
    write_tile<T>(tile, rows, p.columns, {p.y.row(row), p.y.stride});
    rstd.copy(rows, p.rstd + row);
  }
}

// Bytes of a tile, at most: see tile_rows().
template <class T>
inline constexpr int64_t kTileBytes = int64_t{sizeof(T) == 2 ? 32 : 16} << 10;

// shared: see rms_norm_share(); null: rows are so short that each call does it anew.
template <class T>
HWY_NOINLINE void rms_norm_tiles(const RmsNorm<T>& p, int64_t first, int64_t last, const RowCut& cut, Stores stores,
                                 const Wide<T>* shared) {
  HWY_ALIGN Wide<T> room[parameter_room<T>(kMostOwnColumns<T>)];
  const Parameter<T> gamma = find_parameter<T>(p.gamma, p.columns, shared, room);
  TileStage<T> stage;
  FoldedRows<T> squares;
  TileRow<double> sums;
  TileRow<Wide<T>> rstd;
  const int64_t tile = tile_rows<kTileBytes<T>>(cut, p.y, p.columns, stores);
  for (int64_t row = first; row < last; row += tile) {
    const int64_t rows = HWY_MIN(tile, last - row);
    const int64_t ahead = cut.ask != Ask::kNothing && row + 2 * rows <= last ? rows : 0;
    tile_squares(p, row, rows, 0, p.columns, squares, sums);
    tile_rstd(p, row, rows, sums, rstd);
    scale_tile(p, row, rows, ahead, 0, p.columns, gamma, rstd.of, stores, stage);
    rstd.copy(rows, p.rstd + row);
  }
  stage.finish();
  if (stores != Stores::kPlain) flush_streams();
}

template <class T>
void rms_norm_rows(const RmsNorm<T>& p, int64_t first, int64_t last, const RowCut& cut, Stores stores,
                   const Wide<T>* shared) {
  if (p.columns <= kNarrowColumns) return rms_norm_narrow(p, first, last);
  if constexpr (kSplits<T>) {
    if (is_short(p)) return rms_norm_tiles(shortened(p), first, last, cut, stores, nullptr);
  }
  rms_norm_tiles(p, first, last, cut, stores, shared);
}

// Splits or widens a block of gamma for all rows to share.
template <class T>
void rms_norm_share(const RmsNorm<T>& p, int64_t block, Wide<T>* to) {
  share_block<T>(p.gamma, p.columns, block, to);
}

template <class T>
void rms_norm_block_squares(const RmsNorm<T>& p, int64_t row, int64_t rows, int64_t block, double* sums) {
  FoldedRows<T> squares;
  TileRow<double> found;
  tile_squares(p, row, rows, block * kBlock, HWY_MIN((block + 1) * kBlock, p.columns), squares, found);
  found.copy(rows, sums);
}

// sums: each row's, of all its blocks.
template <class T>
void rms_norm_group_rstd(const RmsNorm<T>& p, int64_t row, int64_t rows, TileRow<double>& sums) {
  TileRow<Wide<T>> rstd;
  tile_rstd(p, row, rows, sums, rstd);
  rstd.copy(rows, p.rstd + row);
}

template <class T>
void rms_norm_block(const RmsNorm<T>& p, int64_t row, int64_t rows, int64_t block, Stores stores, int64_t ahead) {
  const int64_t begin = block * kBlock, end = HWY_MIN(begin + kBlock, p.columns);
  HWY_ALIGN Wide<T> room[parameter_room<T>(kBlock)];
  const Parameter<T> gamma(p.gamma.from(begin), end - begin, room);
  TileStage<T> stage;
  scale_tile(p, row, rows, ahead, begin, end, gamma, p.rstd + row, stores, stage);
  stage.finish();
  if (stores != Stores::kPlain) flush_streams();
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace descend::kernels {
namespace {

template <class T>
void by_rows(const RmsNorm<T>& p, int64_t row_bytes, Stores stores, Wide<T>* room) {
  static const auto run = DESCEND_CHOOSE(rms_norm_rows<T>);
  static const auto share = DESCEND_CHOOSE(rms_norm_share<T>);
  const int64_t work = row_work<T>(2 * p.columns);
  const bool shared = shares_parameters<T>(p.columns);
  RowCut cut = cut_loose_rows(p.rows, row_bytes, work, shared ? 1 : kLeastChunkRows<T>);
  cut.near = stays_near(2 * p.rows * row_bytes);
  if (shared) parallel_for(blocks_in(p.columns), 2 * row_bytes, [&](int64_t b) { share(p, b, room); });
  over_loose_rows(cut, p.rows, work,
                  [&](int64_t first, int64_t last) { run(p, first, last, cut, stores, shared ? room : nullptr); });
}

// Sums of blocks at a time.
constexpr int64_t kMaxSums = 4096;

template <class T>
void by_columns(const RmsNorm<T>& p, int64_t row_bytes, int64_t bytes, Stores stores) {
  static const auto block_squares = DESCEND_CHOOSE(rms_norm_block_squares<T>);
  static const auto block = DESCEND_CHOOSE(rms_norm_block<T>);
  static const auto group_rstd = DESCEND_CHOOSE(rms_norm_group_rstd<T>);
  const int64_t blocks = blocks_in(p.columns), group = group_rows(row_bytes),
                work = p.rows * row_work<T>(2 * p.columns);
  double sums[kMaxSums];
  for (int64_t row = 0; row < p.rows; row += group) {
    const int64_t rows = std::min(group, p.rows - row);
    TileRow<double> whole = {};
    for (int64_t first = 0; first < blocks; first += kMaxSums / rows) {
      const int64_t count = std::min(kMaxSums / rows, blocks - first);
      parallel_for(count, work, [&](int64_t b) { block_squares(p, row, rows, first + b, sums + b * rows); });
      const FixedFpEnvironment environment;
      for (int64_t i = 0; i < count * rows; ++i) whole.of[i % rows] += sums[i];
    }
    {
      const FixedFpEnvironment environment;
      group_rstd(p, row, rows, whole);
    }
    const int64_t ahead = exceeds_kept(bytes) && row + 2 * rows <= p.rows ? rows : 0;
    parallel_for(blocks, work, [&](int64_t b) { block(p, row, rows, b, stores, ahead); });
  }
}

}  // namespace

template <class T>
size_t rms_norm_scratch(int64_t columns) {
  return shares_parameters<T>(columns) ? static_cast<size_t>(parameter_room<T>(columns)) * sizeof(Wide<T>) : 0;
}

template <class T>
void rms_norm(const RmsNorm<T>& p, void* scratch) {
  if (p.rows <= 0) return;
  if (p.columns <= 0) {
    std::fill_n(p.rstd, p.rows, std::numeric_limits<Wide<T>>::quiet_NaN());  // the mean of nothing
    return;
  }
  const int64_t row_bytes = p.columns * static_cast<int64_t>(sizeof(T));
  const int64_t bytes = 2 * p.rows * row_bytes;
  const Stores stores = norm_stores_of(p.y, p.columns, bytes);
  if (split_loose_columns(p.rows, p.columns, shares_parameters<T>(p.columns))) {
    by_columns(p, row_bytes, bytes, stores);
  } else {
    by_rows(p, row_bytes, stores, static_cast<Wide<T>*>(scratch));
  }
}

#define DESCEND_INSTANTIATE(T)                          \
  template size_t rms_norm_scratch<T>(int64_t columns); \
  template void rms_norm<T>(const RmsNorm<T>& problem, void* scratch);
DESCEND_INSTANTIATE(float16)
DESCEND_INSTANTIATE(bfloat16)
DESCEND_INSTANTIATE(float)
DESCEND_INSTANTIATE(double)

}  // namespace descend::kernels
#endif  // HWY_ONCE
