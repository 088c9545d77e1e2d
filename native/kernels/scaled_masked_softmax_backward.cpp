#include "kernels/scaled_masked_softmax_backward.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/cut.h"
#include "kernels/stores.h"
#include "runtime/parallel.h"

#define HWY_TARGET_INCLUDE "kernels/scaled_masked_softmax_backward.cpp"
#include "kernels/dispatch.h"
#include "kernels/fold_rows-inl.h"
#include "kernels/mask-inl.h"
#include "kernels/pack-inl.h"
#include "kernels/split_pack-inl.h"
#include "kernels/spread-inl.h"
#include "kernels/stage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// How a row's gradient is computed from its sum. The usual way takes the scale into the difference: the fewest
// operations and roundings. It would overflow or underflow early for a scale that is large or tiny, where it is a
// factor of its own, and a sum that is an infinity leaves only the formula as it stands.
enum class Form : uint8_t { kFolded, kFactored, kExpanded };

// The numbers that rows of dy are compared with, each in two parts: where dy nearly cancels it, the second keeps what
// the first has lost, unless the rounding of a 16-bit result hides that. Returns which are infinite.
template <class D, class W>
HWY_INLINE hn::Mask<D> comparands(D d, hn::Vec<D> sums, hn::Vec<D> factor, W* high, W* low) {
  const auto rounded = store_rounded(d, hn::Mul(sums, factor), high);
  const auto rest = hn::MulSub(sums, factor, rounded);
  store_rounded(d, hn::IfThenElseZero(hn::IsFinite(rest), rest), low);
  return hn::IsInf(rounded);
}

// Those of a tile.
template <class W>
struct Comparands {
  HWY_ALIGN W high[kTileRows<W>];
  HWY_ALIGN W low[kTileRows<W>];
  bool any_infinite;  // of high

  HWY_INLINE Comparands(const double* sums, int64_t rows, double factor) {
    const Tag<double> d;
    auto infinite = hn::FirstN(d, 0);
    for_each_row_vector(rows, [&](int64_t r) HWY_ATTR {
      infinite = hn::Or(infinite, comparands(d, hn::Load(d, sums + r), hn::Set(d, factor), high + r, low + r));
    });
    any_infinite = !hn::AllFalse(d, infinite);
  }

  HWY_INLINE bool infinite(int64_t row) const { return std::abs(high[row]) == std::numeric_limits<W>::infinity(); }
};

template <class T, class Extent>
HWY_INLINE void add_products(Extent extent, const T* dy, const T* y, Pack<Wide<T>>& acc) {
  const SplitPack<T, Extent> dys(extent, dy), ys(extent, y);
  DESCEND_UNROLL
  for (size_t k = 0; k < kPackVectors<Wide<T>>; ++k) {
    if (!reaches<T>(extent, k)) break;
    acc.v[k] = hn::MulAdd(dys[k], ys[k], acc.v[k]);
  }
}

// sums[r] = the sum of dy * y over row `first` + r, block by block, for a tile of rows. The y that is `ahead` rows on
// is asked for; where kBoth, what lies kAheadBytes ahead, of either.
template <bool kBoth, class T>
HWY_NOINLINE void add_dots(const ScaledMaskedSoftmaxBackward<T>& p, int64_t first, int64_t rows, int64_t ahead,
                           double* sums) {
  using W = Wide<T>;
  constexpr int64_t kAhead = kAheadBytes / static_cast<int64_t>(sizeof(T));
  const int64_t stride_dy = p.dy.stride, stride_y = p.y.stride, columns = p.columns;
  const int64_t ahead_y = kBoth ? kAhead : ahead * stride_y;
  zero_sums<W>(sums);
  for (int64_t block = 0; block < columns; block += kBlock) {
    const int64_t n = HWY_MIN(kBlock, columns - block);
    const Tail<T> tail(n);
    const T *dy = p.dy.row(first) + block, *y = p.y.row(first) + block;
    for_each_fold<W>(rows, [&](int64_t row, int64_t count, Vector<W>* lanes) DESCEND_INLINED {
      for (int64_t r = 0; r < count; ++r, dy += stride_dy, y += stride_y) {
        Pack<W> acc = zero_pack<W>();
        for_each_pack<W>(0, n, tail, [&](auto extent, int64_t c) DESCEND_INLINED {
          if constexpr (std::is_same_v<decltype(extent), Full>) {
            prefetch_pack<prefetch_distant>(y + c, ahead_y);
            if constexpr (kBoth) prefetch_pack<prefetch_distant>(dy + c, kAhead);
          } else if constexpr (kBoth) {
            prefetch_distant(y + c + kAhead);
            prefetch_distant(dy + c + kAhead);
          }
          add_products(extent, dy + c, y + c, acc);
        });
        lanes[r] = fold_to_vector<W>(acc.v);
      }
      add_rows<W>(lanes, sums + row);
    });
  }
}

// The same of a tile of narrow rows that lie without gaps.
template <class T>
HWY_INLINE void narrow_dots(const ScaledMaskedSoftmaxBackward<T>& p, int64_t first, int64_t rows, double* sums) {
  using W = Wide<T>;
  HWY_ALIGN W products[kTileRoom<W>];
  HWY_ALIGN W dots[kTileRows<W>];
  const T *dy = p.dy.row(first), *y = p.y.row(first);
  for_each_vector_of(rows * p.columns, products, [&](auto extent, int64_t c, size_t k) HWY_ATTR {
    return hn::Mul(load(extent, dy + c, k), load(extent, y + c, k));
  });
  fold_narrow<kSplits<T>>(products, rows, p.columns, W{0}, Sum(), Sum(), dots);
  for_each_row_vector(rows, [&](int64_t r) HWY_ATTR { hn::Store(load_as_double(dots + r), Tag<double>(), sums + r); });
}

template <class T>
struct Elements {
  const T* dy;
  const T* y;
  const uint8_t* mask;
  T* dx;
  int64_t n;
};

// Calls also(extent, column) for every pack of them besides. The first `lead` elements are a pack of their own.
template <Form kForm, bool kStream, class T, class Number, class Also>
HWY_INLINE void apply(const Elements<T>& e, const Number& highs, const Number& lows, int64_t lead, Wide<T> scale,
                      Also also) {
  using W = Wide<T>;
  constexpr int64_t kStep = kPackLanes<W>;
  const auto factor = splat(scale);
  const auto one_pack = [&](auto extent, int64_t c) DESCEND_INLINED {
    const SplitPack<T, decltype(extent)> dys(extent, e.dy + c), ys(extent, e.y + c);
    Pack<W> result;
    DESCEND_UNROLL
    for (size_t k = 0; k < kPackVectors<W>; ++k) {
      const auto dy = dys[k], y = ys[k], high = highs.at(c, k);
      if constexpr (kForm == Form::kFolded) {
        const auto difference = hn::MulSub(dy, factor, high);
        result.v[k] = hn::Mul(sizeof(T) == 2 ? difference : hn::Sub(difference, lows.at(c, k)), y);
      } else {
        const auto difference = kForm == Form::kFactored ? hn::Mul(y, hn::Sub(hn::Sub(dy, high), lows.at(c, k)))
                                                         : hn::Sub(hn::Mul(dy, y), hn::Mul(y, high));
        result.v[k] = hn::Mul(difference, factor);
      }
    }
    store_unmasked<kStream>(extent, result, e.mask + c, e.dx + c);
  };
  if (lead > 0) one_pack(Part{static_cast<size_t>(lead)}, 0);
  int64_t c = 0;
  for (; c + lead + kStep <= e.n; c += kStep) {
    one_pack(Full(), c + lead);
    also(Full(), c);
  }
  if (c + lead < e.n) one_pack(Part{static_cast<size_t>(e.n - c - lead) % kStep}, c + lead);
  for_each_pack<W>(c, e.n, also);
}

// Rows that lie without gaps, one after the other. (Their first is not given by value: it would be copied by vectors
// that are read where numbers were just written, which waits until all results above are stored.)
template <Form kForm, bool kStream, class T>
HWY_NOINLINE void apply_rows(const Elements<T>& first, int64_t rows, const Wide<T>* high, const Wide<T>* low,
                             Wide<T> scale, int64_t ahead) {
  Elements<T> e{first.dy, first.y, first.mask, first.dx, first.n};
  const int64_t columns = e.n;
  for (int64_t r = 0; r < rows; ++r) {
    const Uniform<Wide<T>> highs(high[r]), lows(low[r]);
    const T* dy = e.dy;
    apply<kForm, kStream, T>(e, highs, lows, 0, scale,
                             [=](auto, int64_t c) DESCEND_INLINED { prefetch_pack<prefetch_distant>(dy + c, ahead); });
    e.dy += columns, e.y += columns, e.mask += columns, e.dx += columns;
  }
}

// What is left to do for a row whose sum is known, and meanwhile, where kNext, the sum of the next one: so reading and
// writing go on all the time, side by side. The row that is `ahead` of the last that is read is asked for; of long rows
// what lies a little ahead, for a whole row would have to leave the first-level cache again.
template <Form kForm, bool kNext, bool kStream, class T>
HWY_NOINLINE double apply_row(const ScaledMaskedSoftmaxBackward<T>& p, int64_t row, const MaskCursor& mask,
                              Wide<T> high, Wide<T> low, Wide<T> scale, int64_t ahead) {
  using W = Wide<T>;
  constexpr int64_t kAhead = kAheadBytes / static_cast<int64_t>(sizeof(T));
  const Uniform<W> highs(high), lows(low);
  HWY_ALIGN uint8_t buffer[kBlock];
  double sum = 0;
  for (int64_t block = 0; block < p.columns; block += kBlock) {
    const int64_t n = HWY_MIN(kBlock, p.columns - block);
    const T *dy = p.dy.row(row + kNext) + block, *y = p.y.row(row + kNext) + block;
    Pack<W> acc = zero_pack<W>();
    T* dx = p.dx.row(row) + block;
    const int64_t lead = kStream ? before_line(dx, n) : 0;
    apply<kForm, kStream, T>(
        {p.dy.row(row) + block, p.y.row(row) + block, mask.columns(block, n, buffer), dx, n}, highs, lows, lead, scale,
        [&](auto extent, int64_t c) HWY_ATTR {
          if constexpr (kNext) {
            if (kStream && std::is_same_v<decltype(extent), Full>) {  // what does not fit in the caches is far away
              const bool within = p.columns > kAhead;
              prefetch_pack<prefetch_distant>(dy + c, within ? kAhead : ahead * p.dy.stride);
              prefetch_pack<prefetch_distant>(y + c, within ? kAhead : ahead * p.y.stride);
            }
            add_products(extent, dy + c, y + c, acc);
          } else {
            prefetch_pack<prefetch_distant>(dy + c, ahead * p.dy.stride);
          }
        });
    if (kNext) sum += static_cast<double>(fold(acc));
  }
  return sum;
}

template <Form kForm>
constexpr double form_factor(double scale) {
  return kForm == Form::kFolded ? scale : 1.0;
}

template <Form kForm, bool kStream, class T>
HWY_INLINE void long_rows(const ScaledMaskedSoftmaxBackward<T>& p, int64_t first, int64_t last, Wide<T> scale) {
  using W = Wide<T>;
  const hn::CappedTag<double, 1> d;
  const auto factor = hn::Set(d, form_factor<kForm>(static_cast<double>(scale)));
  HWY_ALIGN double sums[kTileRows<W>];
  MaskCursor mask(p.mask, first);
  add_dots<false>(p, first, 1, 0, sums);
  double sum = sums[0];
  const int64_t rows_ahead = ceil_div(kAheadBytes, p.columns * static_cast<int64_t>(sizeof(T)));
  for (int64_t row = first; row < last; ++row, mask.next()) {
    W high, low;
    const bool infinite = !hn::AllFalse(d, comparands(d, hn::Set(d, sum), factor, &high, &low));
    const int64_t ahead = row + 1 + rows_ahead < last ? rows_ahead : 0;
    if (kStream && row + 2 < last) prefetch_shared(p.dx.row(row + 2), 0, 1, p.columns);
    if (infinite) {
      const auto run =
          row + 1 < last ? apply_row<Form::kExpanded, true, false, T> : apply_row<Form::kExpanded, false, false, T>;
      sum = run(p, row, mask, static_cast<W>(sum), W{0}, scale, ahead);
    } else {
      const auto run = row + 1 < last ? apply_row<kForm, true, kStream, T> : apply_row<kForm, false, kStream, T>;
      sum = run(p, row, mask, high, low, scale, ahead);
    }
  }
}

// Inputs of a tile, whose first-level cache also holds the results.
inline constexpr int64_t kTileBytes = int64_t{16} << 10;
template <class T>
inline constexpr int64_t kMostElements = kTileBytes / (2 * static_cast<int64_t>(sizeof(T)));

template <class T>
inline constexpr int64_t kOneColumns = 512 / static_cast<int64_t>(sizeof(Wide<T>));

// Whether rows that lie without gaps are computed as if they were one: short rows whose last pack is not full, and, of
// 16 bits, those not much longer whose last pack would be half empty or more; of bfloat16, which is widened sooner, not
// quite so long ones.
template <class T>
HWY_INLINE bool work_as_one(int64_t columns) {
  constexpr int64_t kLanes = kPackLanes<Wide<T>>;
  const int64_t rest = columns % kLanes;
  if (rest == 0) return columns * static_cast<int64_t>(sizeof(T)) < 128;
  if (sizeof(T) > 2) return columns <= kShortColumns / 4 * 3;
  if (kSplits<T>) return columns <= kShortColumns - 8 || (columns <= kOneColumns<T> - kLanes && rest <= kLanes / 2);
  return columns <= kShortColumns || (columns <= kOneColumns<T> && rest <= kLanes / 2);
}

// A tile after the other: the sums of its rows, what follows from them, and the rows' results. So that memory is never
// idle, the sums' pass asks for the next tile's y and the results' for its dy. Where rows are as one, the sums' pass
// asks for both; but where they share a line, the results' pass does.
template <Form kForm, bool kStream, class T>
HWY_INLINE void tiles(const ScaledMaskedSoftmaxBackward<T>& p, int64_t first, int64_t last, Wide<T> scale,
                      bool staged) {
  using W = Wide<T>;
  const int64_t columns = p.columns, row_bytes = 2 * columns * static_cast<int64_t>(sizeof(T));
  const bool gapless = has_no_gaps(p) && (!kStream || are_aligned(p.dx));
  const bool as_one = gapless && work_as_one<T>(columns);
  // Where the second-level cache is asked, 16-bit rows as one leave memory idle, whatever way they are stored.
  const bool idle = kAsksSecondLevel && sizeof(T) == 2 && as_one;
  staged = staged && !idle;
  const bool share_lines = row_bytes < 2 * 64;
  const int64_t tile =
      columns <= kShortColumns && as_one ? short_tile<W>(columns) : HWY_MIN(kFoldRows<W>, kTileBytes / row_bytes);
  HWY_ALIGN uint8_t buffer[kMostElements<T>];
  Spread<T, kFoldRows<W> * kOneColumns<T>> highs, lows;
  Stage<T, kMostElements<T>> stage;
  MaskCursor mask(p.mask, first);
  for (int64_t row = first; row < last; row += tile) {
    const int64_t rows = HWY_MIN(tile, last - row);
    const int64_t ahead = row + rows < last ? rows : 0;
    HWY_ALIGN double sums[kTileRows<W>];
    if (as_one && columns <= kNarrowColumns) {
      narrow_dots(p, row, rows, sums);
    } else if (as_one && !share_lines) {
      add_dots<true>(p, row, rows, 0, sums);
    } else {
      add_dots<false>(p, row, rows, ahead, sums);
    }
    const Comparands<W> by(sums, rows, form_factor<kForm>(static_cast<double>(scale)));
    if (!gapless || by.any_infinite) {
      for (int64_t r = 0; r < rows; ++r, mask.next()) {
        if (by.infinite(r)) {
          apply_row<Form::kExpanded, false, false>(p, row + r, mask, static_cast<W>(sums[r]), W{0}, scale, 0);
        } else {
          apply_row<kForm, false, kStream>(p, row + r, mask, by.high[r], by.low[r], scale, ahead);
        }
      }
      continue;
    }
    const Rows<T> dx{p.dx.row(row), columns}, to = staged ? stage.rows(dx, columns) : dx;
    Elements<T> e{p.dy.row(row), p.y.row(row), mask.tile(rows, columns, buffer), to.data, columns};
    if (as_one) {
      highs.fill(by.high, rows, columns);
      if (sizeof(T) != 2 || kForm != Form::kFolded) lows.fill(by.low, rows, columns);
      e.n = rows * columns;
      apply<kForm, kStream>(e, highs, lows, 0, scale, [&](auto, int64_t c) DESCEND_INLINED {
        if (!share_lines) return;
        prefetch_pack<prefetch_distant>(e.dy + c, ahead * columns);
        prefetch_pack<prefetch_distant>(e.y + c, ahead * columns);
      });
    } else {
      apply_rows<kForm, kStream>(e, rows, by.high, by.low, scale, ahead * columns);
    }
    if (staged) stage.stream(dx, rows, columns);
  }
  stage.finish();
}

template <Form kForm, bool kStream, class T>
HWY_INLINE void all_rows(const ScaledMaskedSoftmaxBackward<T>& p, int64_t first, int64_t last, Wide<T> scale,
                         bool in_tiles, bool staged) {
  if (in_tiles) {
    tiles<kForm, kStream>(p, first, last, scale, staged);
  } else {
    long_rows<kForm, kStream>(p, first, last, scale);
  }
  if (kStream || staged) flush_streams();
}

template <class T>
void softmax_backward_rows(const ScaledMaskedSoftmaxBackward<T>& p, int64_t first, int64_t last, Stores stores,
                           bool in_tiles) {
  using W = Wide<T>;
  // A NaN for a scale might not be one that could come of bfloat16.
  const W scale = std::isnan(p.scale) ? std::numeric_limits<W>::quiet_NaN() : static_cast<W>(p.scale);
  const W size = std::abs(scale);
  const bool staged = stores == Stores::kStaged;
  if (size >= W{0x1p-64} && size <= W{1}) {
    (kHasVectors && stores == Stores::kStream)
        ? all_rows<Form::kFolded, kHasVectors>(p, first, last, scale, in_tiles, false)
        : all_rows<Form::kFolded, false>(p, first, last, scale, in_tiles, staged);
  } else {
    all_rows<Form::kFactored, false>(p, first, last, scale, in_tiles, false);
  }
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace descend::kernels {
namespace {

// Bytes from which on rows that do not begin where lines do are stored line by line; shorter ones by way of a stage.
// The ends of rows that are whole words go past the caches, too. Measured on AMD's Zen 5; where the second-level cache
// is asked, as on Zen 4, the bounds from before are kept until they are measured there.
template <class T>
int64_t least_in_lines(const ScaledMaskedSoftmaxBackward<T>& p) {
  const int64_t row_bytes = p.columns * static_cast<int64_t>(sizeof(T));
  if (!kAsksSecondLevel) return row_bytes % kWord == 0 ? 640 : 832;
  return sizeof(T) > 2 && row_bytes % 64 != 0 && has_no_gaps(p) ? 2 * kLongRow : kLongRow;
}

// Whether rows are computed a tile at a time; else each while the next one is summed. Short ones are, and longer ones
// of floats that go by way of a stage; of 16 bits somewhat longer ones, too, with one thread or from the caches. (This
// has not been measured where the second-level cache is asked, as on Zen 4.)
template <class T>
bool go_in_tiles(const ScaledMaskedSoftmaxBackward<T>& p, int64_t bytes, Stores stores) {
  constexpr int64_t kLong = 256, kLong16 = 384;  // columns
  if (p.columns < kLong) return true;
  if (sizeof(T) > 2) return stores == Stores::kStaged;
  return p.columns < kLong16 && !kAsksSecondLevel && (num_threads() == 1 || !exceeds_kept(bytes));
}

}  // namespace

template <class T>
void scaled_masked_softmax_backward(const ScaledMaskedSoftmaxBackward<T>& p) {
  static const auto run = DESCEND_CHOOSE(softmax_backward_rows<T>);
  if (p.rows <= 0 || p.columns <= 0) return;
  const int64_t size = static_cast<int64_t>(sizeof(T));
  const int64_t bytes = 3 * p.rows * p.columns * size;
  const Stores stores = row_stores_of(p.dx, p.columns, {bytes, bytes / 3}, least_in_lines(p));
  const bool in_tiles = go_in_tiles(p, bytes, stores);
  const int64_t work = row_work<T>(3 * p.columns);
  const RowCut cut = cut_loose_rows(p.rows, 2 * p.columns * size, work);
  over_loose_rows(cut, p.rows, work, [&](int64_t first, int64_t last) { run(p, first, last, stores, in_tiles); });
}

template void scaled_masked_softmax_backward<float16>(const ScaledMaskedSoftmaxBackward<float16>& problem);
template void scaled_masked_softmax_backward<bfloat16>(const ScaledMaskedSoftmaxBackward<bfloat16>& problem);
template void scaled_masked_softmax_backward<float>(const ScaledMaskedSoftmaxBackward<float>& problem);
template void scaled_masked_softmax_backward<double>(const ScaledMaskedSoftmaxBackward<double>& problem);

}  // namespace descend::kernels
#endif  // HWY_ONCE
