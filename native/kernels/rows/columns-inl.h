// Parameters and sums of columns.
#pragma once

#include "kernels/rows/engine.h"
#include "kernels/rows/prefetch-inl.h"
#include "kernels/rows/sum_columns-inl.h"
#include "kernels/simd/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// As a conversion to bfloat16 does: quiet, and without the lower bits. See Nan.
HWY_INLINE Vector<float> shorten_nan(Vector<float> v) {
  const Tag<float> d;
  const Tag<uint32_t> du;
  const auto quiet = hn::Or(hn::BitCast(du, v), hn::Set(du, 0x400000));
  return hn::IfThenElse(hn::IsNaN(v), hn::BitCast(d, hn::And(quiet, hn::Set(du, 0xFFFF0000))), v);
}

// n parameters, of which one of the two is given; made up to whole packs.
template <class T, class W = Wide<T>>
HWY_NOINLINE void prepare_parameter(const W* wide, const T* own, int64_t n, W* to) {
  if (wide == nullptr) {
    for_each_pack<W>(0, n, [&](auto extent, int64_t c) HWY_ATTR {
      prefetch_pack<prefetch_distant>(own + c, n);  // of the next columns
      store(Full(), load_pack(extent, own + c), to + c);
    });
  } else if constexpr (std::is_same_v<T, bfloat16>) {
    for_each_pack<W>(0, n, [&](auto extent, int64_t c) HWY_ATTR {
      Pack<W> pack = load_pack(extent, wide + c);
      for (auto& v : pack.v) v = shorten_nan(v);
      store(Full(), pack, to + c);
    });
  }
}

// Parameters of columns [begin, begin + n) as the loops read them; `room` has some for whole packs of each. ready: what
// belongs into the room is there.
template <class P, class T, class W = Wide<T>>
HWY_INLINE void place_parameters(const RowProblem<W>& p, int64_t begin, int64_t n, W* room, int64_t each,
                                 const W** parameters, bool ready = false) {
  DESCEND_UNROLL
  for (int i = 0; i < P::kParameters; ++i) {
    const W* const wide = p.parameters[i].wide;
    const T* const own = static_cast<const T*>(p.parameters[i].own);
    if constexpr (std::is_same_v<T, W>) {
      parameters[i] = (wide != nullptr ? wide : own) + begin;
    } else if (wide != nullptr && !std::is_same_v<T, bfloat16>) {
      parameters[i] = wide + begin;
    } else {
      if (!ready) {
        prepare_parameter<T>(wide == nullptr ? nullptr : wide + begin, wide == nullptr ? own + begin : nullptr, n,
                             room + i * each);
      }
      parameters[i] = room + i * each;
    }
  }
}

template <class W>
HWY_INLINE void clear_sums(W* sums, int64_t n) {
  for (int64_t c = 0; c < n; c += kPackLanes<W>) store(Full(), zero_pack<W>(), sums + c);
}

// Writes n sums where they end.
template <class T, class V>
HWY_NOINLINE void write_columns(const V* sums, int64_t n, Wide<T>* wide, void* own, bool stream) {
  leave_sums<T>(sums, n, {.slots = nullptr, .wide = wide, .own = static_cast<T*>(own)}, true, stream);
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
