// Norms and layer norm's gradient in double: of rows whose sums leave the range of the fast loops.
#pragma once

#include <cmath>
#include <cstdint>

namespace descend::kernels {

// RMS norm's sum and its rstd. Epsilon is the first of the call's numbers.
inline void sum_squares(int64_t n, const double* const* in, const double* const*, const double*, double* sums) {
  for (int64_t c = 0; c < n; ++c) sums[0] += in[0][c] * in[0][c];
}

inline void exact_rstd(const double* epsilon, const double* means, double* rstd) {
  rstd[0] = 1 / std::sqrt(means[0] + epsilon[0]);
}

inline void map_rms_norm(int64_t n, const double* x, const double* const* column, const double* epsilon,
                         const double* means, double* y) {
  double rstd;
  exact_rstd(epsilon, means, &rstd);
  for (int64_t c = 0; c < n; ++c) y[c] = x[c] * rstd * column[0][c];
}

// Layer norm's sums, behind which is the pivot.
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

inline void map_layer_norm(int64_t n, const double* x, const double* const* column, const double* epsilon,
                           const double* means, double* y) {
  double of_row[2];
  exact_moments(epsilon, means, of_row);
  for (int64_t c = 0; c < n; ++c) y[c] = (x[c] - of_row[0]) * of_row[1] * column[0][c] + column[1][c];
}

// Layer norm's gradient: mean(g * xhat) and mean(g); dx, and what is added to dgamma and dbeta.
inline void sum_layer_norm_gradient(int64_t n, const double* const* in, const double* const* column, const double* row,
                                    double* sums) {
  for (int64_t c = 0; c < n; ++c) {
    const double g = in[0][c] * column[0][c];
    sums[0] += g * ((in[1][c] - row[0]) * row[1]);
    sums[1] += g;
  }
}

inline void map_layer_norm_gradient(int64_t n, const double* const* in, const double* const* column, const double* row,
                                    const double* means, double* dx, double* const* sums) {
  for (int64_t c = 0; c < n; ++c) {
    const double dy = in[0][c], xhat = (in[1][c] - row[0]) * row[1];
    sums[0][c] = dy * xhat;
    sums[1][c] = dy;
    dx[c] = row[1] * (dy * column[0][c] - means[1] - xhat * means[0]);
  }
}

}  // namespace descend::kernels
