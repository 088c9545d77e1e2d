// The limit of operators that compute more than memory can hold up.
#pragma once

#include <cstdint>

#include "kernels/simd/element.h"

namespace descend::kernels {

// Seconds that `threads` threads take for the arithmetic of group norm + swish backward on `elements` elements of 16
// bits, all of them in first-level caches: one exp and one division an element, the multiply-adds of both passes, the
// conversions. `type` is kFloat16 or kBfloat16. Throws std::bad_alloc.
[[gnu::visibility("default")]] double group_norm_swish_grad_arithmetic(Element type, int64_t elements, int threads,
                                                                       double seconds);

}  // namespace descend::kernels
