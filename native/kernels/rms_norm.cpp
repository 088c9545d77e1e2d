#include <cmath>
#include <limits>

#include "kernels/dispatch.h"
#include "kernels/norm_finish-inl.h"
#include "kernels/rows/operator.h"
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

  template <class T>
  static RowKernels<Wide<T>> kernels() {
    return row_kernels<RmsNormProgram, T>();
  }

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

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace descend::kernels::DESCEND_TARGET {
namespace {

constexpr double of_nothing[] = {std::numeric_limits<double>::quiet_NaN()};

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

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_ROW_FORWARD(rms_norm, RmsNormProgram)
