// The machine's memory limit for two reads and one write.
#pragma once

#include <cstddef>

namespace descend::kernels {

// Bytes a second of c = a + s * b over three float arrays of `bytes` in all, on `threads` threads: the better of plain
// and non-temporal stores, each the median of the passes that fit into half of `seconds`. 0 when there is no memory.
[[gnu::visibility("default")]] double triad(size_t bytes, int threads, double seconds);

}  // namespace descend::kernels
