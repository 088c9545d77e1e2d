// Which rows and groups the backward passes of norms may compute with fewer operations.
#pragma once

#include <cmath>

#include "hwy/base.h"

namespace descend::kernels {

template <class W>
inline constexpr W kTameLeast = W{0x1p-24f};
template <class W>
inline constexpr W kTameMost = W{0x1p24f};

// Whether rstd is so near to 1 that products with it may be put together in any order, as far as what they are made of
// is not at the ends of its type's range.
template <class W>
HWY_INLINE bool is_tame(W rstd) {
  return std::abs(rstd) >= kTameLeast<W> && std::abs(rstd) <= kTameMost<W>;
}

}  // namespace descend::kernels
