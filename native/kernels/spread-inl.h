// Short rows that lie one after the other: what is done to each element alone is done to all rows of a tile as if they
// were one, in whole vectors. What differs from row to row is spread over the rows' elements first.
#if defined(DESCEND_KERNELS_SPREAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DESCEND_KERNELS_SPREAD_INL_H_
#undef DESCEND_KERNELS_SPREAD_INL_H_
#else
#define DESCEND_KERNELS_SPREAD_INL_H_
#endif

#include <type_traits>

#include "kernels/fold_rows-inl.h"
#include "kernels/pack-inl.h"
#include "kernels/split_pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Columns of a short row: of longer ones the part of a vector that a row may leave empty costs little.
inline constexpr int64_t kShortColumns = 64;

// Rows and elements of a tile of short rows: enough that what is done to all of them one after the other hides how long
// each step takes, few enough for a first-level cache.
template <class W>
inline constexpr int64_t kTileRows = 4 * kFoldRows<W>;
template <class W>
inline constexpr int64_t kTileElements = kFoldRows<W> * kShortColumns;
template <class W>
HWY_INLINE int64_t short_tile(int64_t columns) {
  const int64_t rows = kTileElements<W> / columns / kFoldRows<W> * kFoldRows<W>;
  return HWY_MIN(rows, kTileRows<W>);
}

// The sums of a tile's rows.
template <class W>
HWY_INLINE void zero_sums(double* sums) {
  const Tag<double> d;
  for_each_row_vector(kTileRows<W>, [&](int64_t r) HWY_ATTR { hn::Store(hn::Zero(d), d, sums + r); });
}

// The columns behind the last whole pack of rows of T, as Part has them, but found once for many rows.
template <class T>
struct Tail {
#if HWY_TARGET == HWY_AVX3
  using D = std::conditional_t<kSplits<T>, Bits16x2, std::conditional_t<sizeof(T) == 2, Bits16<float>, Tag<Wide<T>>>>;
  static constexpr size_t kCount = kPackLanes<Wide<T>> / hn::MaxLanes(D());

  HWY_INLINE explicit Tail(int64_t columns) : n(static_cast<size_t>(columns) % kPackLanes<Wide<T>>) {
    DESCEND_UNROLL
    for (size_t k = 0; k < kCount; ++k) {
      const size_t first = k * hn::MaxLanes(D());
      inside[k] = hn::FirstN(D(), n > first ? n - first : 0);
    }
  }
  hn::Mask<D> inside[kCount];
#else
  HWY_INLINE explicit Tail(int64_t columns) : n(static_cast<size_t>(columns) % kPackLanes<Wide<T>>) {}
#endif
  size_t n;
};
#if HWY_TARGET == HWY_AVX3
template <class D, class T, class R = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_bits(const Tail<T>& tail, D d, const R* p, size_t k) {
  return hn::MaskedLoad(tail.inside[k], d, p + k * hn::MaxLanes(d));
}
#else
template <class D, class T, class R = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_bits(const Tail<T>& tail, D d, const R* p, size_t k) {
  return load_bits(Part{tail.n}, d, p, k);
}
#endif

// Whether vector k of a split pack has any column of the row.
template <class T>
HWY_INLINE constexpr bool reaches(Full, size_t) {
  return true;
}
template <class T, class Rest>
HWY_INLINE bool reaches(const Rest& rest, size_t k) {
  return kSplits<T> || rest.n > k * kVectorLanes<Wide<T>>;
}

// One number for every element.
template <class W>
class Uniform {
 public:
  HWY_INLINE explicit Uniform(W value) : value_(splat(value)) {}
  HWY_INLINE Vector<W> at(int64_t, size_t) const { return value_; }

 private:
  Vector<W> value_;
};

// A number for each element of a tile of short rows, in the order of T's split packs.
template <class T>
class Spread {
  using W = Wide<T>;

 public:
  HWY_INLINE Spread() {}

  HWY_INLINE void fill(const W* of_row, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; ++r) {
      const auto value = splat(of_row[r]);
      if constexpr (kSplits<T>) {
        fill(value, (r * columns + 1) / 2, (columns + 1) / 2, values_);
        fill(value, r * columns / 2, (columns + 1) / 2, values_ + kSize / 2);
      } else {
        fill(value, r * columns, columns, values_);
      }
    }
  }

  // Of vector k of the pack that begins at an element.
  HWY_INLINE Vector<W> at(int64_t element, size_t k) const {
    const W* p = values_ + element + k * kVectorLanes<W>;
    if constexpr (kSplits<T>) {
      p = values_ + element / 2 + (k % kVectorPairs<T>)*kVectorLanes<W>;
      if (k >= kVectorPairs<T>) p += kSize / 2;
    }
    return hn::LoadU(Tag<W>(), p);
  }

 private:
  static constexpr size_t kSize = kTileElements<W> + 2 * kPackLanes<W>;

  // Whole vectors: what they write behind the row is the next row's, and written after it.
  static HWY_INLINE void fill(Vector<W> value, int64_t begin, int64_t n, W* to) {
    for (int64_t c = 0; c < n; c += kVectorLanes<W>) hn::StoreU(value, Tag<W>(), to + begin + c);
  }

  HWY_ALIGN W values_[kSize];
};

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DESCEND_KERNELS_SPREAD_INL_H_
