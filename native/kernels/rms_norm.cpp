#include "kernels/rms_norm.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/rows/engine.h"

#define HWY_TARGET_INCLUDE "kernels/rms_norm.cpp"
#include "kernels/dispatch.h"
#include "kernels/norm_finish-inl.h"
#include "kernels/rows/shared-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

//   rstd = 1 / sqrt(mean(x * x) + epsilon),  y = x * rstd * gamma
struct RmsNormProgram {
  enum Input { kX, kInputs };
  enum Parameter { kGamma, kParameters };
  enum Scalar { kEpsilon, kScalars };
  enum Term { kNumbers = 0, kRstd = 0, kTerms, kStatistics = 1 };
  enum Sum { kSums = 1, kColumnSums = 0 };
  static constexpr int kRowsAtOnce = kHasVectors ? 2 : 1;
  static constexpr int kRowsMapped = kHasVectors ? 2 : 1;
  static constexpr bool kFoldsInDouble = false;
  static constexpr Nan kNan = Nan::kOfBfloat16;  // rows with any are computed in double

  template <class V>
  static HWY_INLINE void sum(const V* in, const V*, const V*, V* sums) {
    sums[0] = hn::MulAdd(in[kX], in[kX], sums[0]);
  }

  template <class W, class V>
  static HWY_INLINE auto finish(const V* means, const double* scalars, V* row) {
    return norm_rstd<W>(means[0], means[0], scalars[kEpsilon], row[kRstd]);
  }

  template <class V>
  static HWY_INLINE V map(const V* in, const V* column, const V* row, V*) {
    return hn::Mul(hn::Mul(in[kX], row[kRstd]), column[kGamma]);
  }
};

template <class T>
RowKernels<Wide<T>> rms_norm_kernels() {
  return row_kernels<RmsNormProgram, T>();
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace descend::kernels {
namespace {

void exact_sums(int64_t n, const double* const* in, const double* const*, const double*, double* sums) {
  for (int64_t c = 0; c < n; ++c) sums[0] += in[0][c] * in[0][c];
}

void exact_statistics(const double* numbers, const double* means, double* rstd) {
  rstd[0] = 1 / std::sqrt(means[0] + numbers[0]);
}

void exact_map(int64_t n, const double* const* in, const double* const* column, const double* numbers,
               const double* means, double* y, double* const*) {
  double rstd;
  exact_statistics(numbers, means, &rstd);
  for (int64_t c = 0; c < n; ++c) y[c] = in[0][c] * rstd * column[0][c];
}

}  // namespace

template <class T>
size_t rms_norm_scratch(int64_t rows, int64_t columns) {
  return forward_scratch(rows, columns, kElementOfType<T>, 1);
}

template <class T>
void rms_norm(const RmsNorm<T>& p, void* scratch) {
  using W = Wide<T>;
  static const RowOperator<W> op{.kernels = DESCEND_CHOOSE_FOR(T, rms_norm_kernels<T>)(),
                                 .exact_sums = exact_sums,
                                 .exact_statistics = exact_statistics,
                                 .exact_map = exact_map};
  if (p.columns <= 0) std::fill_n(p.rstd, p.rows, std::numeric_limits<W>::quiet_NaN());  // the mean of nothing
  const RowProblem<W> problem{.rows = p.rows,
                              .columns = p.columns,
                              .element = kElementOfType<T>,
                              .in = {stream_of(p.x)},
                              .out = stream_of(p.y),
                              .statistics = {p.rstd},
                              .scalars = {p.epsilon},
                              .parameters = {{p.gamma.wide, p.gamma.own}},
                              .sums = {}};
  run_forward(problem, op, scratch);
}

#define DESCEND_INSTANTIATE(T)                                        \
  template size_t rms_norm_scratch<T>(int64_t rows, int64_t columns); \
  template void rms_norm<T>(const RmsNorm<T>& problem, void* scratch);
DESCEND_INSTANTIATE(float16)
DESCEND_INSTANTIATE(bfloat16)
DESCEND_INSTANTIATE(float)
DESCEND_INSTANTIATE(double)

}  // namespace descend::kernels
#endif  // HWY_ONCE
