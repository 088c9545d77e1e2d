// Mean and variance of rows in double: of those whose sums leave the range of the fast loops.
#pragma once

#include <cmath>
#include <cstdint>

namespace descend::kernels {

// Behind the two sums is the pivot.
inline void sum_moments(int64_t n, const double* const* in, const double* const*, const double*, double* sums) {
  for (int64_t c = 0; c < n; ++c) {
    const double distance = in[0][c] - sums[2];
    sums[0] += distance;
    sums[1] += distance * distance;
  }
}

// Mean and rstd. Epsilon is the first of the call's numbers.
inline void exact_moments(const double* epsilon, const double* means, double* statistics) {
  const bool too_large = std::isinf(means[1]) && std::isfinite(means[0]);  // what is taken from it may be, too
  const double variance = too_large ? means[1] : means[1] - means[0] * means[0];
  statistics[0] = means[2] + means[0];
  statistics[1] = 1 / std::sqrt((variance < 0 ? 0 : variance) + epsilon[0]);
}

}  // namespace descend::kernels
