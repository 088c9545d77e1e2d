// Bytes of a mask as lanes.
#pragma once

#include "kernels/simd/pack-inl.h"

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

// Stores a pair of vectors of a pack as store_pair() does, but for zeros where the mask's byte is not 0.
template <bool kStream, Nan kNan, bool kQuarters = false, class T, class Extent>
HWY_INLINE void store_unmasked(Extent extent, Vector<Wide<T>> first, Vector<Wide<T>> second, const uint8_t* mask, T* p,
                               size_t pair) {
  using W = Wide<T>;
  first = hn::IfThenElseZero(load_open<W>(extent, mask, 2 * pair), first);
  second = hn::IfThenElseZero(load_open<W>(extent, mask, 2 * pair + 1), second);
  store_pair<kStream, kNan, kQuarters>(extent, first, second, p, 2 * pair);
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
