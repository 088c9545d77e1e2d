// Conversions of neighbouring elements, for kernels.
#pragma once

#include <cstring>
#include <type_traits>

#include "kernels/simd/doubles-inl.h"
#include "kernels/simd/element.h"
#include "kernels/simd/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

template <class From, class To, class Extent>
HWY_INLINE void convert_pack(Extent extent, size_t n, const From* from, To* to) {
  if constexpr (std::is_same_v<From, double>) {
    HWY_ALIGN double padded[kPackLanes<float>] = {};
    if constexpr (std::is_same_v<Extent, Part>) {
      copy_few(from, static_cast<int64_t>(n), padded);
      from = padded;
    }
    store(extent, narrow_pack<float>(from, sizeof(To) == 2), to);
  } else if constexpr (std::is_same_v<To, double>) {
    HWY_ALIGN float lanes[kPackLanes<float>];
    store(Full(), load_pack(extent, from), lanes);
    add_columns(lanes, static_cast<int64_t>(n), true, to);
  } else {
    store(extent, load_pack(extent, from), to);
  }
}

// n neighbouring elements
template <class From, class To>
void convert_neighbours(const void* from_bytes, void* to_bytes, int64_t n) {
  if constexpr (std::is_same_v<From, To>) {
    std::memcpy(to_bytes, from_bytes, static_cast<size_t>(n) * sizeof(To));
  } else {
    const From* from = static_cast<const From*>(from_bytes);
    To* to = static_cast<To*>(to_bytes);
    constexpr int64_t kStep = kPackLanes<float>;
    int64_t i = 0;
    for (; i + kStep <= n; i += kStep) convert_pack(Full(), kStep, from + i, to + i);
    if (i < n) convert_pack(Part{static_cast<size_t>(n - i)}, static_cast<size_t>(n - i), from + i, to + i);
  }
}

// The same where From is known at run time.
template <class To>
void convert_from(Element type, const void* from, To* to, int64_t n) {
  with_element_type(type, [&]<class From>(From) { convert_neighbours<From, To>(from, to, n); });
}

// The same where To is.
template <class From>
void convert_to(const From* from, Element type, void* to, int64_t n) {
  with_element_type(type, [&]<class To>(To) { convert_neighbours<From, To>(from, to, n); });
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
