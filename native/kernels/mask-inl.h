// Bytes of a mask as lanes.
#if defined(DESCEND_KERNELS_MASK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DESCEND_KERNELS_MASK_INL_H_
#undef DESCEND_KERNELS_MASK_INL_H_
#else
#define DESCEND_KERNELS_MASK_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

template <class W>
using Lanes = hn::Mask<Tag<W>>;

HWY_INLINE Lanes<float> lanes_of(float, hn::Vec<hn::Rebind<uint8_t, Tag<float>>> bytes) {
  const Tag<uint32_t> d;
  return hn::RebindMask(Tag<float>(), hn::Ne(hn::PromoteTo(d, bytes), hn::Zero(d)));
}

HWY_INLINE Lanes<double> lanes_of(double, hn::Vec<hn::Rebind<uint8_t, Tag<double>>> bytes) {
  const Tag<uint64_t> d;
  const auto words = hn::PromoteTo(hn::Rebind<uint32_t, Tag<double>>(), bytes);
  return hn::RebindMask(Tag<double>(), hn::Ne(hn::PromoteTo(d, words), hn::Zero(d)));
}

// The lanes of vector k of a pack whose byte is not 0.
template <class W, class Extent>
HWY_INLINE Lanes<W> load_mask(Extent extent, const uint8_t* p, size_t k) {
  return lanes_of(W(), load_bits(extent, hn::Rebind<uint8_t, Tag<W>>(), p, k));
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DESCEND_KERNELS_MASK_INL_H_
