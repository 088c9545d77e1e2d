#include "kernels/group_norm_swish.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/rows/engine.h"
#include "kernels/rows/moments.h"
#include "kernels/rows/norm_finish-inl.h"
#include "kernels/rows/stretches-inl.h"
#include "kernels/simd/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Rows are groups, and gamma and beta change from channel to channel.
//   z = ((x - centre) * rstd + level) * gamma + beta,  y = activate ? z * sigmoid(s * z) : z
struct GroupNormSwishProgram : Moments<> {
  enum Parameter { kGamma, kBeta, kParameters };
  enum Scalar { kEpsilon, kScale, kActivate, kScalars };
  static constexpr int kMapped[] = {kCentre, kRstd + 1};

  template <class V>
  static HWY_INLINE V map(const V* in, const V* column, const V* row, V*) {
    return hn::MulAdd(normalised(in, row), column[kGamma], column[kBeta]);
  }

  template <class T>
  struct Swish {
    explicit HWY_INLINE Swish(const double* scalars)
        : activate(scalars[kActivate] != 0),
          steepness(static_cast<Wide<T>>(std::isnan(scalars[kScale]) ? NAN : scalars[kScale])) {}
    bool activate;
    Steepness<Wide<T>, kBriefly<T>> steepness;
  };

  template <size_t kN, class T, class V, class F>
  static HWY_INLINE void activate(const Swish<T>& by, V* z, F are_finite) {
    if (by.activate) swish<kBriefly<T>, Wide<T>, kN>(by.steepness, z, are_finite);
  }
};

template <class T>
RowKernels<Wide<T>> group_norm_swish_kernels() {
  return stretch_kernels<GroupNormSwishProgram, T>();
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace descend::kernels::DESCEND_TARGET {
namespace {

// z * sigmoid(u), also where z has overflowed; are_finite: whether what z was computed from is.
double exact_swish(double z, double u, bool are_finite) {
  const double e = exp_of_one(-std::abs(u)), factor = u < 0 ? e : 1;
  return (factor == 0 && are_finite ? 0 : z * factor) / (1 + e);
}

void exact_map(int64_t n, const double* const* in, const double* const* channel, const double* numbers,
               const double* means, double* y, double* const*) {
  double of_group[2];
  exact_moments(numbers, means, of_group);
  const double scale = numbers[1];
  const bool activate = numbers[2] != 0;
  for (int64_t c = 0; c < n; ++c) {
    const double gamma = channel[0][c], beta = channel[1][c];
    const double z = (in[0][c] - of_group[0]) * of_group[1] * gamma + beta;
    y[c] = activate ? exact_swish(z, scale * z, std::isfinite(gamma) && std::isfinite(beta)) : z;
  }
}

// The samples lie one after the other, or there is one.
bool are_dense(const GroupShape& shape, int64_t stride) {
  return shape.samples == 1 || stride == shape.channels * shape.inner;
}

}  // namespace

template <class T>
size_t group_norm_swish_scratch(const GroupShape& shape) {
  const auto of = [&](int64_t rows) { return forward_scratch(rows, shape.group_elements(), kElementOf<T>, 0); };
  return shape.elements() == 0 ? 0 : std::max(of(shape.samples * shape.groups), of(shape.groups));
}

template <class T>
void group_norm_swish(const GroupNormSwish<T>& p, void* scratch) {
  using W = Wide<T>;
  static const RowOperator<W> op{.kernels = group_norm_swish_kernels<T>(),
                                 .exact_sums = sum_moments,
                                 .exact_statistics = exact_moments,
                                 .exact_map = exact_map};
  const GroupShape& shape = p.shape;
  const int64_t groups = shape.groups, columns = shape.group_elements();
  if (shape.elements() == 0) {
    std::fill_n(p.mean, shape.samples * groups, W{0});
    std::fill_n(p.rstd, shape.samples * groups, std::numeric_limits<W>::quiet_NaN());
    return;
  }
  const int64_t step = are_dense(shape, p.x.stride) && are_dense(shape, p.y.stride) ? shape.samples : 1;
  for (int64_t n = 0; n < shape.samples; n += step) {
    const RowProblem<W> problem{.rows = step * groups,
                                .columns = columns,
                                .stretch = shape.inner,
                                .period = groups,
                                .element = kElementOf<T>,
                                .in = {stream_of<const T>({p.x.row(n), columns})},
                                .out = stream_of<T>({p.y.row(n), columns}),
                                .statistics = {p.mean + n * groups, p.rstd + n * groups},
                                .scalars = {p.epsilon, static_cast<double>(p.scale), p.activate ? 1.0 : 0.0},
                                .parameters = {{p.gamma, nullptr}, {p.beta, nullptr}},
                                .sums = {}};
    run_forward(problem, op, scratch);
  }
}

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_KERNEL(size_t, group_norm_swish_scratch, (const GroupShape& shape), shape)
DESCEND_KERNEL(void, group_norm_swish, (const GroupNormSwish<T>& problem, void* scratch), problem, scratch)
