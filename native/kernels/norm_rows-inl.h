// What the forward passes of layer norm and RMS norm share: sums of a tile of rows, and parameters beside split packs.
#if defined(DESCEND_KERNELS_NORM_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DESCEND_KERNELS_NORM_ROWS_INL_H_
#undef DESCEND_KERNELS_NORM_ROWS_INL_H_
#else
#define DESCEND_KERNELS_NORM_ROWS_INL_H_
#endif

#include "kernels/fold_rows-inl.h"
#include "kernels/norm_rows.h"
#include "kernels/pack-inl.h"
#include "kernels/split_pack-inl.h"
#include "kernels/stage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// What a row of n columns has beyond whole packs. Its bound is known to the compiler, which spares checks.
template <class W>
HWY_INLINE Part tail_of(int64_t n) {
  return {static_cast<size_t>(n) % kPackLanes<W>};
}

// The sum of a split pack's lanes, for each row of a tile: the tree of fold() over the columns in order, in which the
// even columns and the odd ones meet last. Until then they lie in one vector, each in a half of it. Beyond the rows, as
// far as the next whole fold of them, the sum is 0.
template <class T>
class FoldedRows {
 public:
  using W = Wide<T>;

  HWY_INLINE FoldedRows() {}  // as Pack's

  HWY_INLINE void set(int64_t row, Pack<W> pack) {
    if constexpr (kSplits<T>) {
      constexpr size_t kCount = kVectorPairs<T>;
      Vector<W> even[kCount], odd[kCount];
      each<kCount>([&](size_t k) DESCEND_INLINED {
        even[k] = pack.v[k];
        odd[k] = pack.v[kCount + k];
      });
      v_[row] = fold_step<kHalf>(Tag<W>(), fold_to_vector<W>(even), fold_to_vector<W>(odd), Sum());
    } else {
      v_[row] = fold_to_vector<W>(pack.v);
    }
  }

  // Of the first `rows` rows.
  HWY_INLINE void fold(int64_t rows, TileRow<W>& to) {
    const Tag<W> d;
    if (rows <= kFew) {
      for (int64_t r = 0; r < kFoldRows<W>; r += kVectorLanes<W>) hn::Store(hn::Zero(d), d, to.of + r);
      for (int64_t r = 0; r < rows; ++r) to.of[r] = fold_one(v_[r]);
      return;
    }
    const int64_t end = ceil_div(rows, kFoldRows<W>) * kFoldRows<W>;
    for (int64_t r = rows; r < end; ++r) v_[r] = hn::Zero(d);
    for (int64_t r = 0; r < end; r += kVectorLanes<W>) {
      Vector<W> some[kVectorLanes<W>];
      each<kVectorLanes<W>>([&](size_t i) DESCEND_INLINED { some[i] = v_[r + static_cast<int64_t>(i)]; });
      hn::Store(fold_some(some), d, to.of + r);
    }
  }

 private:
  static constexpr int64_t kFew = 4;  // rows, which fold sooner one by one
  static constexpr size_t kHalf = kVectorLanes<W> / 2;

  static HWY_INLINE W fold_one(Vector<W> v) {
#if HWY_TARGET != HWY_SCALAR
    if constexpr (kSplits<T>) {
      const hn::Half<Tag<W>> half;
      return fold_vector(half, hn::LowerHalf(half, v)) + fold_vector(half, hn::UpperHalf(half, v));
    } else
#endif
      return fold_vector(Tag<W>(), v);
  }

  // Of as many rows as a vector has lanes.
  static HWY_INLINE Vector<W> fold_some(Vector<W>* v) {
    const Tag<W> d;
    if constexpr (kSplits<T>) {
      const auto first = fold_each<Tag<W>, Sum, kHalf>(d, v, Sum());
      return fold_step<kHalf>(d, first, fold_each<Tag<W>, Sum, kHalf>(d, v + kHalf, Sum()), Sum());
    } else {
      return fold_each(d, v, Sum());
    }
  }

  Vector<W> v_[kMaxRows];
};

// Whether a row of n columns fits a vector, and there are rows enough to fold side by side.
template <class T>
HWY_INLINE bool fits_vector(int64_t rows, int64_t n) {
  constexpr int64_t kLanes = kVectorLanes<Wide<T>>;
  return !kSplits<T> && kLanes > 1 && n <= kLanes && rows >= kLanes;
}

// ---- What is computed of a tile's sums, in double.

// The double nearest v among those that W has.
template <class W>
HWY_INLINE Vector<double> round_to(Vector<double> v) {
  const Tag<double> d;
  return widen_to_double(d, narrow_double<W>(d, v));
}

// Whether `mask` holds for the first n rows of a vector.
HWY_INLINE bool all_of_rows(hn::Mask<Tag<double>> mask, int64_t n) {
  const Tag<double> d;
  return hn::AllFalse(d, hn::AndNot(mask, hn::FirstN(d, static_cast<size_t>(n))));
}

// ---- Parameters.

#if HWY_TARGET != HWY_SCALAR
// As a conversion to bfloat16 does: quiet, and without the lower bits.
HWY_INLINE Vector<float> shorten_nan(Vector<float> v) {
  const Tag<float> d;
  const Tag<uint32_t> du;
  const auto quiet = hn::Or(hn::BitCast(du, v), hn::Set(du, 0x400000));
  const auto shorter = hn::BitCast(d, hn::And(quiet, hn::Set(du, 0xFFFF0000)));
  return hn::IfThenElse(hn::IsNaN(v), shorter, v);
}

// n columns, fewer than a pack, with NaN such as Nan::kOfBfloat16 asks for.
HWY_INLINE const float* with_short_nan(const float* from, int64_t n, float* room) {
  Pack<float> pack = load_pack(Part{static_cast<size_t>(n)}, from);
  for (auto& v : pack.v) v = shorten_nan(v);
  store(Full(), pack, room);
  return room;
}

// The even columns of n and the odd ones, with the same NaN.
HWY_INLINE void split_even_odd(const float* from, int64_t n, float* even, float* odd) {
  const Tag<float> d;
  constexpr int64_t kStep = 2 * kVectorLanes<float>;
  HWY_ALIGN float rest[kStep] = {};
  for (int64_t c = 0; c < n; c += kStep) {
    const bool whole = n - c >= kStep;
    if (!whole) copy_few(from + c, n - c, rest);
    Vector<float> evens, odds;
    hn::LoadInterleaved2(d, whole ? from + c : rest, evens, odds);
    hn::StoreU(shorten_nan(evens), d, even + c / 2);
    hn::StoreU(shorten_nan(odds), d, odd + c / 2);
  }
}

// The same of bfloat16.
HWY_INLINE void split_even_odd(const bfloat16* from, int64_t n, float* even, float* odd) {
  for_each_pack<float>(0, n, [&](auto extent, int64_t c) HWY_ATTR {
    const Pack<float> pack = load_split(extent, from + c);
    each<kVectorPairs<bfloat16>>([&](size_t i) DESCEND_INLINED {
      const int64_t to = c / 2 + static_cast<int64_t>(i * kVectorLanes<float>);
      hn::StoreU(pack.v[pair_first<bfloat16>(i)], Tag<float>(), even + to);
      hn::StoreU(pack.v[pair_second<bfloat16>(i)], Tag<float>(), odd + to);
    });
  });
}

HWY_INLINE void split(const ColumnParameter<bfloat16>& from, int64_t n, float* even, float* odd) {
  from.own != nullptr ? split_even_odd(from.own, n, even, odd) : split_even_odd(from.wide, n, even, odd);
}
#endif

// gamma or beta beside split packs of T, from any column on.
template <class T>
class Parameter {
 public:
  using W = Wide<T>;

  // Widens it to `room` or, where packs are split, splits it to there.
  HWY_INLINE Parameter(const ColumnParameter<T>& from, int64_t n, W* room) {
    if constexpr (kSplits<T>) {
      split(from, n, room, room + half_room(n));
      *this = Parameter(room, n);
    } else {
      even_ = odd_ = widened(from, n, room);
      if constexpr (kIsShort<T>) {
        if (from.own == nullptr) even_ = odd_ = with_short_nan(from.wide, n, room);
      }
    }
  }

  // It is there.
  HWY_INLINE Parameter(const W* room, int64_t n) : even_(room), odd_(kSplits<T> ? room + half_room(n) : room) {}

  // The pack that begins with column c.
  template <class Extent>
  HWY_INLINE Pack<W> pack(Extent extent, int64_t c) const {
    if constexpr (!kSplits<T>) return load_pack(extent, even_ + c);
    const W* first = (c % 2 == 0 ? even_ : odd_) + c / 2;
    const W* second = (c % 2 == 0 ? odd_ : even_ + 1) + c / 2;
    Pack<W> pack;
    each<kVectorPairs<T>>([&](size_t i) DESCEND_INLINED {
      pack.v[pair_first<T>(i)] = hn::LoadU(Tag<W>(), first + i * kVectorLanes<W>);
      pack.v[pair_second<T>(i)] = hn::LoadU(Tag<W>(), second + i * kVectorLanes<W>);
    });
    return pack;
  }

 private:
  const W* even_;
  const W* odd_;
};

// From `shared` if that is given and needed, else by way of `room`.
template <class T>
HWY_INLINE Parameter<T> find_parameter(const ColumnParameter<T>& from, int64_t n, const Wide<T>* shared,
                                       Wide<T>* room) {
  const bool needed = kSplits<T> || from.own != nullptr;
  return shared != nullptr && needed ? Parameter<T>(shared, n) : Parameter<T>(from, n, room);
}

// A block of a parameter of n columns to its place in what is shared.
template <class T>
HWY_INLINE void share_block(const ColumnParameter<T>& whole, int64_t n, int64_t block, Wide<T>* shared) {
  const int64_t begin = block * kBlock, columns = HWY_MIN(kBlock, n - begin);
  const ColumnParameter<T> from = whole.from(begin);
  if constexpr (kSplits<T>) {
    split(from, columns, shared + begin / 2, shared + begin / 2 + half_room(n));
  } else {
    widened(from, columns, shared + begin);
  }
}

// Columns of parameters, at most, that each call splits or widens anew.
template <class T>
inline constexpr int64_t kMostOwnColumns = kIsShort<T> ? kPackLanes<Wide<T>> : kStripeColumns;

// ---- Tiles.

// Columns of a long row of n that are computed before those of the next: what lies beside them stays in the first-level
// cache. The more the better, for processors foresee best what is read and written in order.
template <class T>
constexpr int64_t stretch_of(int64_t n) {
  constexpr int64_t kWhole = 1024;  // of so many, a row is not cut
  return sizeof(T) == 2 ? 2048 : n <= kWhole ? kWhole : 256;
}

// Calls apply(extent, x, y, of(r), beside(extent, c)) for every pack of `rows` rows of n columns, x and y pointing to
// what is read and written: what is beside the columns is the same for all rows. in_lines, for long rows: a stretch of
// one comes before that of the next, and what goes past the caches begins with a line of y; stores then neither share
// lines nor need a stage. (Elsewhere the parts of packs that this takes would cost more than stores to two lines; not
// measured where the second-level cache is asked, as on Zen 4.)
template <bool kStream, class T, class Of, class Beside, class Apply>
HWY_INLINE void apply_to_packs(bool in_lines, Rows<const T> x, Rows<T> y, int64_t rows, int64_t n, Of of, Beside beside,
                               Apply apply) {
  using W = Wide<T>;
  if (!in_lines) {
    const auto all_rows = [&](auto extent, int64_t c) HWY_ATTR {
      const auto shared = beside(extent, c);
      const T* from = x.data + c;
      T* to = y.data + c;
      for (int64_t r = 0; r < rows; ++r, from += x.stride, to += y.stride) apply(extent, from, to, of(r), shared);
    };
    return for_each_pack<W>(0, n, tail_of<W>(n), all_rows);
  }
  const int64_t step = stretch_of<T>(n);
  for (int64_t stretch = 0; stretch < n; stretch += step) {
    for (int64_t r = 0; r < rows; ++r) {
      const T* from = x.row(r);
      T* to = y.row(r);
      const auto of_row = of(r);
      const auto one_row = [&](auto extent, int64_t c)
                               HWY_ATTR { apply(extent, from + c, to + c, of_row, beside(extent, c)); };
      const int64_t lead = kStream || kAsksSecondLevel ? before_line(to, n) : 0;
      if (stretch == 0 && lead > 0) one_row(Part{static_cast<size_t>(lead)}, 0);
      const int64_t begin = HWY_MIN(stretch + lead, n), end = HWY_MIN(begin + step, n);
      for_each_pack<W>(begin, end, one_row);
    }
  }
}

// Results of a tile of rows that are not stored line by line.
static_assert(kMaxGroupRows * kLeastOfOthers <= kMaxRows * kLongRow);  // short rows are fewer bytes than kLongRow
template <class T>
using TileStage = Stage<T, kMaxRows * kLongRow / static_cast<int64_t>(sizeof(T))>;

// Rows of a tile. What is read again of short ones lies in the first-level cache if it is so little: what lies farther
// is slow to come while memory is waited for. Of near rows, and of 16 bits, which take more arithmetic, what a tile
// does once for all its rows counts for more, and it may have kRoom bytes. (Where the second-level cache is asked, as
// on Zen 4, this has been measured for short rows alone.)
template <int64_t kRoom, class T>
HWY_INLINE int64_t tile_rows(const RowCut& cut, const Rows<T>& y, int64_t columns, Stores stores) {
  constexpr int64_t kShortTile = int64_t{8} << 10, kStageRoom = kMaxRows * kLongRow;  // bytes
  if (cut.alone && reads_sparingly<T>(cut.ask) && stores == Stores::kStream && are_aligned(y)) return 1;
  const auto fitting = [=](int64_t least, int64_t room) {
    int64_t rows = kMaxRows;
    while (rows > least && rows * columns * static_cast<int64_t>(sizeof(T)) > room) rows /= 2;
    return rows;
  };
  if (cut.near || (sizeof(T) == 2 && !kAsksSecondLevel)) {
    return fitting(kMaxGroupRows / 2, stores == Stores::kStaged ? HWY_MIN(kRoom, kStageRoom) : kRoom);
  }
  if (are_long<T>(columns)) return HWY_MIN(2 * cut.tile, kMaxGroupRows);  // it was cut for two inputs
  return sizeof(T) == 2 ? kMaxRows : fitting(kMaxGroupRows, kShortTile);
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DESCEND_KERNELS_NORM_ROWS_INL_H_
