#include "kernels/layer_norm.h"

#include <algorithm>
#include <limits>

#include "kernels/moments.h"
#include "kernels/rows/engine.h"

#define HWY_TARGET_INCLUDE "kernels/layer_norm.cpp"
#include "kernels/dispatch.h"
#include "kernels/norm_finish-inl.h"
#include "kernels/rows/shared-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

//   y = ((x - centre) * rstd + level) * gamma + beta
struct LayerNormProgram : MomentsProgram {
  enum Parameter { kGamma, kBeta, kParameters };
  enum Scalar { kEpsilon, kScalars };

  template <class V>
  static HWY_INLINE V map(const V* in, const V* column, const V* row, V*) {
    return hn::MulAdd(normalised(in, row), column[kGamma], column[kBeta]);
  }
};

template <class T>
RowKernels<Wide<T>> layer_norm_kernels() {
  return row_kernels<LayerNormProgram, T>();
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace descend::kernels {
namespace {

void exact_map(int64_t n, const double* const* in, const double* const* column, const double* numbers,
               const double* means, double* y, double* const*) {
  double of_row[2];
  exact_moments(numbers, means, of_row);
  for (int64_t c = 0; c < n; ++c) y[c] = (in[0][c] - of_row[0]) * of_row[1] * column[0][c] + column[1][c];
}

}  // namespace

template <class T>
size_t layer_norm_scratch(int64_t rows, int64_t columns) {
  return forward_scratch(rows, columns, kElementOfType<T>, 2);
}

template <class T>
void layer_norm(const LayerNorm<T>& p, void* scratch) {
  using W = Wide<T>;
  static const RowOperator<W> op{.kernels = DESCEND_CHOOSE_FOR(T, layer_norm_kernels<T>)(),
                                 .exact_sums = sum_moments,
                                 .exact_statistics = exact_moments,
                                 .exact_map = exact_map};
  if (p.columns <= 0) {
    if (p.mean != nullptr) std::fill_n(p.mean, p.rows, W{0});
    if (p.rstd != nullptr) std::fill_n(p.rstd, p.rows, std::numeric_limits<W>::quiet_NaN());
  }
  const RowProblem<W> problem{.rows = p.rows,
                              .columns = p.columns,
                              .element = kElementOfType<T>,
                              .in = {stream_of(p.x)},
                              .out = stream_of(p.y),
                              .statistics = {p.mean, p.rstd},
                              .scalars = {p.epsilon},
                              .parameters = {{p.gamma.wide, p.gamma.own}, {p.beta.wide, p.beta.own}},
                              .sums = {}};
  run_forward(problem, op, scratch);
}

#define DESCEND_INSTANTIATE(T)                                          \
  template size_t layer_norm_scratch<T>(int64_t rows, int64_t columns); \
  template void layer_norm<T>(const LayerNorm<T>& problem, void* scratch);
DESCEND_INSTANTIATE(float16)
DESCEND_INSTANTIATE(bfloat16)
DESCEND_INSTANTIATE(float)
DESCEND_INSTANTIATE(double)

}  // namespace descend::kernels
#endif  // HWY_ONCE
