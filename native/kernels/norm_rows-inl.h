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
// even columns and the odd ones meet last. Beyond the rows, as far as the next whole fold of them, the sum is 0.
template <class T>
class FoldedRows {
 public:
  using W = Wide<T>;

  HWY_INLINE FoldedRows() {}  // as Pack's

  HWY_INLINE void set(int64_t row, Pack<W> pack) {
    constexpr size_t kCount = kPackVectors<W> / kParts;
    DESCEND_UNROLL
    for (size_t h = 0; h < kParts; ++h) {
      Vector<W> part[kCount];
      each<kCount>([&](size_t k) HWY_ATTR { part[k] = pack.v[h * kCount + k]; });
      v_[h][row] = fold_to_vector<W>(part);
    }
  }

  // Of the first `rows` rows.
  HWY_INLINE void fold(int64_t rows, TileRow<W>& to) {
    const Tag<W> d;
    if (rows <= kFew) {
      for (int64_t r = 0; r < kFoldRows<W>; r += kVectorLanes<W>) hn::Store(hn::Zero(d), d, to.of + r);
      for (int64_t r = 0; r < rows; ++r) {
        to.of[r] = fold_vector(d, v_[0][r]);
        if constexpr (kParts == 2) to.of[r] += fold_vector(d, v_[1][r]);
      }
      return;
    }
    fold(v_[0], rows, to);
    if constexpr (kParts == 2) {
      TileRow<W> odd;
      fold(v_[1], rows, odd);
      for (int64_t r = 0; r < rows; r += kVectorLanes<W>) {
        hn::Store(hn::Add(hn::Load(d, to.of + r), hn::Load(d, odd.of + r)), d, to.of + r);
      }
    }
  }

 private:
  static constexpr size_t kParts = kSplits<T> ? 2 : 1;
  static constexpr int64_t kFew = 4;  // rows, which fold sooner one by one

  HWY_INLINE static void fold(Vector<W>* v, int64_t rows, TileRow<W>& to) {
    for (int64_t r = rows; r % kFoldRows<W> != 0; ++r) v[r] = hn::Zero(Tag<W>());
    for (int64_t r = 0; r < rows; r += kFoldRows<W>) {
      Vector<W> some[kFoldRows<W>];
      each<kFoldRows<W>>([&](size_t i) HWY_ATTR { some[i] = v[r + static_cast<int64_t>(i)]; });
      fold_rows<W>(some, to.of + r);
    }
  }

  Vector<W> v_[kParts][kMaxRows];
};

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

// gamma or beta beside split packs of T. Where these split it is a copy, in split packs itself and with NaN such as
// Nan::kOfBfloat16 asks for.
template <class T, int64_t kColumns>
class Parameter {
 public:
  using W = Wide<T>;

  HWY_INLINE Parameter(const W* from, int64_t n) : from_(from) {
    if constexpr (kSplits<T>) {
      split_row(from, n, split_);
      constexpr int64_t kStep = kPackLanes<W>;
      for (int64_t c = 0; c < ceil_div(n, kStep) * kStep; c += kVectorLanes<W>) shorten_nan(split_ + c);
      from_ = split_;
    }
  }

  HWY_INLINE const W* data() const { return from_; }

 private:
  // As a conversion to bfloat16 does: quiet, and without the lower bits.
  HWY_INLINE static void shorten_nan(W* p) {
    const Tag<W> d;
    const Tag<uint32_t> du;
    const auto v = hn::Load(d, p);
    const auto quiet = hn::Or(hn::BitCast(du, v), hn::Set(du, 0x400000));
    const auto shorter = hn::BitCast(d, hn::And(quiet, hn::Set(du, 0xFFFF0000)));
    hn::Store(hn::IfThenElse(hn::IsNaN(v), shorter, v), d, p);
  }

  const W* from_;
  HWY_ALIGN W split_[kSplits<T> ? kColumns : 1];
};

// ---- Tiles.

// Bytes of a row which, where reads must come in order, is best computed before the next is begun. A shorter one is not
// enough work, and so much of a longer one leaves the first-level cache that its neighbours may as well share the
// loads.
inline constexpr int64_t kLeastAlone = int64_t{2} << 10, kMostAlone = int64_t{16} << 10;

// Rows of a tile.
template <class T>
HWY_INLINE int64_t tile_rows(const RowCut& cut, int64_t columns, Stores stores) {
  const int64_t row_bytes = columns * static_cast<int64_t>(sizeof(T));
  if (reads_in_order<T>(cut.ask) && stores == Stores::kStream && kLeastAlone <= row_bytes && row_bytes <= kMostAlone)
    return 1;
  return HWY_MIN(2 * cut.tile, HWY_MIN(kMaxRows, Stage<T>::most_rows(columns)));  // it was cut for two inputs
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DESCEND_KERNELS_NORM_ROWS_INL_H_
