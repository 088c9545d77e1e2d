// The gradient of log softmax of rows.
#include <limits>

#include "kernels/rows/operator.h"
#include "kernels/rows/shared-inl.h"
#include "kernels/simd/dispatch.h"
#include "kernels/simd/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

//   dx = dy - exp(y) * sum(dy)
struct LogSoftmaxBackwardProgram {
  enum Input { kDy, kY, kInputs };
  enum Term { kNumbers = 0, kTotal = 0, kTerms };
  enum Sum { kSums = 1, kColumnSums = 0 };
  static constexpr int kParameters = 0, kStatistics = 0, kScalars = 0;
  static constexpr int kRowsAtOnce = 1, kRowsMapped = 1;  // they share no loads
  static constexpr bool kFoldsInDouble = false, kTotals = true;
  static constexpr Nan kNan = Nan::kAny;  // of y alone

  template <class V>
  static HWY_INLINE void sum(const V* in, const V*, const V*, V* sums) {
    sums[0] = hn::Add(in[kDy], sums[0]);
  }

  template <class W, class V>
  static HWY_INLINE auto finish(const V* totals, const double*, V* row) {
    row[kTotal] = totals[0];
    return hn::Le(hn::Abs(totals[0]), splat(static_cast<double>(std::numeric_limits<W>::max())));
  }

  template <class V>
  static HWY_INLINE V map(const V* in, const V*, const V* row, V*) {
    return hn::NegMulAdd(exp<hn::TFromV<V>>(in[kY]), row[kTotal], in[kDy]);
  }

  template <class T>
  static RowKernels<Wide<T>> kernels() {
    return row_kernels<LogSoftmaxBackwardProgram, T>();
  }
};

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace descend::kernels::DESCEND_TARGET {
namespace {

void exact_sums(int64_t n, const double* const* in, const double* const*, const double*, double* sums) {
  for (int64_t c = 0; c < n; ++c) sums[0] += in[0][c];
}

void exact_map(int64_t n, const double* const* in, const double* const*, const double*, const double* totals,
               double* dx, double* const*) {
  for (int64_t c = 0; c < n; ++c) dx[c] = in[0][c] - exp_of_one(in[1][c]) * totals[0];
}

}  // namespace
}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_ROW_KERNEL(log_softmax_backward, {
  static const RowOperator<Wide<T>> op{
      .kernels = LogSoftmaxBackwardProgram::kernels<T>(), .exact_sums = exact_sums, .exact_map = exact_map};
  run_forward(problem, op, scratch);
})
