// Split packs: of bfloat16 the even columns, then the odd ones. Two bfloat16 lie in a word, and taking them apart
// within it costs half as much as widening them in order. Of other types a split pack is the columns in order.
#if defined(DESCEND_KERNELS_SPLIT_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DESCEND_KERNELS_SPLIT_PACK_INL_H_
#undef DESCEND_KERNELS_SPLIT_PACK_INL_H_
#else
#define DESCEND_KERNELS_SPLIT_PACK_INL_H_
#endif

#include <cstring>
#include <type_traits>

#include "kernels/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

template <class T>
inline constexpr bool kSplits = HWY_TARGET != HWY_SCALAR && std::is_same_v<T, bfloat16>;

// The vectors of a pack that are stored together: pair i holds first and second.
template <class T>
inline constexpr size_t kVectorPairs = kPackVectors<Wide<T>> / 2;
template <class T>
constexpr size_t pair_first(size_t i) {
  return kSplits<T> ? i : 2 * i;
}
template <class T>
constexpr size_t pair_second(size_t i) {
  return kSplits<T> ? i + kVectorPairs<T> : 2 * i + 1;
}

// Vector k of the split pack that starts at p.
template <class T, class Extent>
HWY_INLINE Vector<Wide<T>> load_split(Extent extent, const T* p, size_t k) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kSplits<T>) {
    const Tag<uint32_t> du;
    const hn::Repartition<uint16_t, Tag<float>> d16;
    const auto bits =
        hn::BitCast(du, load_bits(extent, d16, reinterpret_cast<const uint16_t*>(p), k % kVectorPairs<T>));
    return hn::BitCast(Tag<float>(),
                       k < kVectorPairs<T> ? hn::ShiftLeft<16>(bits) : hn::And(bits, hn::Set(du, 0xFFFF0000)));
  } else
#endif
    return load(extent, p, k);
}

#if HWY_TARGET != HWY_SCALAR
template <bool kNoNan>
HWY_INLINE hn::Vec<Bits16x2> merge(Vector<float> even, Vector<float> odd) {
  const Tag<uint32_t> du;
  const auto high = hn::And(round_to_bfloat16<kNoNan>(odd), hn::Set(du, 0xFFFF0000));
  return hn::BitCast(Bits16x2(), hn::Or(hn::ShiftRight<16>(round_to_bfloat16<kNoNan>(even)), high));
}
#endif

template <bool kStream, bool kNoNan, class T>
HWY_INLINE void store_split(Full, Vector<Wide<T>> first, Vector<Wide<T>> second, T* p, size_t pair) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kSplits<T>) {
    store_bits<kStream>(Bits16x2(), merge<kNoNan>(first, second),
                        reinterpret_cast<uint16_t*>(p) + pair * hn::MaxLanes(Bits16x2()));
  } else
#endif
    store_pair<kStream, kNoNan>(Full(), first, second, p, 2 * pair);
}

template <bool kStream, bool kNoNan, class T>
HWY_INLINE void store_split(Part part, Vector<Wide<T>> first, Vector<Wide<T>> second, T* p, size_t pair) {
  if constexpr (kSplits<T>) {
    constexpr size_t kLanes = 2 * kVectorLanes<Wide<T>>;
    HWY_ALIGN T both[kLanes];
    store_split<false, false>(Full(), first, second, both, 0);
    const size_t begin = pair * kLanes;
    const size_t n = HWY_MIN(part.n > begin ? part.n - begin : 0, kLanes);
    std::memcpy(p + begin, both, n * sizeof(T));
  } else {
    store_pair<kStream, kNoNan>(part, first, second, p, 2 * pair);
  }
}

#if HWY_TARGET != HWY_SCALAR
// n columns in order into split packs; the last is filled up with zeros.
HWY_INLINE void split_row(const float* from, int64_t n, float* to) {
  constexpr int64_t kStep = kPackLanes<float>;
  constexpr size_t kLanes = kVectorLanes<float>, kCount = kVectorPairs<bfloat16>;
  for (int64_t c = 0; c < n; c += kStep, from += kStep, to += kStep) {
    const float* pack = from;
    HWY_ALIGN float padded[kStep];
    if (n - c < kStep) {
      store(Full(), load_pack(Part{static_cast<size_t>(n - c)}, from), padded);
      pack = padded;
    }
    DESCEND_UNROLL
    for (size_t i = 0; i < kCount; ++i) {
      Vector<float> even, odd;
      hn::LoadInterleaved2(Tag<float>(), pack + 2 * i * kLanes, even, odd);
      hn::StoreU(even, Tag<float>(), to + i * kLanes);
      hn::StoreU(odd, Tag<float>(), to + (i + kCount) * kLanes);
    }
  }
}

// n columns of split packs back into order, in place.
HWY_INLINE void merge_row(float* columns, int64_t n) {
  constexpr size_t kLanes = kVectorLanes<float>, kCount = kVectorPairs<bfloat16>;
  for (int64_t c = 0; c < n; c += kPackLanes<float>, columns += kPackLanes<float>) {
    const Pack<float> pack = load_pack(Full(), columns);
    DESCEND_UNROLL
    for (size_t i = 0; i < kCount; ++i) {
      hn::StoreInterleaved2(pack.v[i], pack.v[i + kCount], Tag<float>(), columns + 2 * i * kLanes);
    }
  }
}
#endif

// What lies beside vector k of a split pack of T, in split packs itself where T splits.
template <class T, class Extent>
HWY_INLINE Vector<Wide<T>> load_beside(Extent extent, const Wide<T>* p, size_t k) {
  if constexpr (kSplits<T>) return load(Full(), p, k);
  return load(extent, p, k);
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DESCEND_KERNELS_SPLIT_PACK_INL_H_
