// Bytes of a mask as lanes.
#if defined(DESCEND_KERNELS_MASK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DESCEND_KERNELS_MASK_INL_H_
#undef DESCEND_KERNELS_MASK_INL_H_
#else
#define DESCEND_KERNELS_MASK_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/pack-inl.h"
#include "kernels/split_pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

template <class W>
using Lanes = hn::Mask<Tag<W>>;

// The lanes of D whose byte is 0.
template <class D>
HWY_INLINE hn::Mask<D> zero_bytes([[maybe_unused]] D d, hn::Vec<hn::Rebind<uint8_t, D>> bytes) {
  [[maybe_unused]] const hn::Rebind<uint8_t, D> d8;
#if HWY_TARGET == HWY_AVX3
  return hn::Mask<D>{static_cast<decltype(hn::Mask<D>::raw)>(hn::Eq(bytes, hn::Zero(d8)).raw)};  // a bit for each lane
#else
  if constexpr (sizeof(hn::TFromD<D>) == 2) {
    const hn::RebindToUnsigned<D> du;
    return hn::RebindMask(d, hn::Eq(hn::PromoteTo(du, bytes), hn::Zero(du)));
  } else {
    const hn::Rebind<uint32_t, D> d32;
    const auto words = hn::PromoteTo(d32, bytes);
    if constexpr (sizeof(hn::TFromD<D>) == 4) {
      return hn::RebindMask(d, hn::Eq(words, hn::Zero(d32)));
    } else {
      const hn::RebindToUnsigned<D> du;
      return hn::RebindMask(d, hn::Eq(hn::PromoteTo(du, words), hn::Zero(du)));
    }
  }
#endif
}

// The lanes of vector k of a pack whose byte is 0: those that are not masked.
template <class W, class Extent>
HWY_INLINE Lanes<W> load_open(Extent extent, const uint8_t* p, size_t k) {
  return zero_bytes(Tag<W>(), load_bits(extent, hn::Rebind<uint8_t, Tag<W>>(), p, k));
}

// Stores a pack as store_split() does, but for zeros where the mask's byte is not 0.
template <bool kStream, class T, class Extent>
HWY_INLINE void store_unmasked(Extent extent, const Pack<Wide<T>>& pack, const uint8_t* mask, T* p) {
  using W = Wide<T>;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kSplits<T>) {
    const hn::Rebind<uint8_t, Bits16x2> d8;
    DESCEND_UNROLL
    for (size_t i = 0; i < kVectorPairs<T>; ++i) {
      const auto bits = merge<Nan::kOfBfloat16>(pack.v[pair_first<T>(i)], pack.v[pair_second<T>(i)]);
      const auto open = zero_bytes(Bits16x2(), load_bits(extent, d8, mask, i));
      store_bits16<kStream>(extent, hn::IfThenElseZero(open, bits), reinterpret_cast<uint16_t*>(p), i);
    }
    return;
  }
#endif
  Pack<W> open;
  DESCEND_UNROLL
  for (size_t k = 0; k < kPackVectors<W>; ++k) open.v[k] = hn::IfThenElseZero(load_open<W>(extent, mask, k), pack.v[k]);
  store_split<kStream>(extent, open, p);
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DESCEND_KERNELS_MASK_INL_H_
