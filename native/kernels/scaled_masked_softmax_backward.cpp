#include "kernels/scaled_masked_softmax_backward.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/rows/engine.h"
#include "kernels/rows/shared-inl.h"
#include "kernels/rows/softmax_range.h"
#include "kernels/simd/dispatch.h"
#include "kernels/simd/doubles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

//   total = scale * sum(dy * y)
//   dx = (scale * dy - total) * y, 0 where masked
// The scale is factor * power: the factor is at most 1, so that nothing overflows early, and the power, one of 2,
// rounds nothing. The total has two parts: where dy nearly cancels it, the second keeps what the first has lost.
template <class T>
struct SoftmaxBackwardProgram {
  enum Input { kDy, kY, kInputs };
  enum Term { kNumbers = 0, kTotal = 0, kRest, kTerms = kRest + (sizeof(T) > 2), kFactor = kTerms, kPower };
  enum Scalar { kScaleFactor, kScalePower, kScalars };
  enum Sum { kSums = 1, kColumnSums = 0 };
  static constexpr int kParameters = 0, kStatistics = 0;
  static constexpr int kRowsAtOnce = 1, kRowsMapped = 1;  // they share no loads
  static constexpr bool kFoldsInDouble = false;
  static constexpr bool kTotals = true, kMapsScalars = true, kMasksResults = true;
  static constexpr Nan kNan = Nan::kOfBfloat16;  // rows with any are computed in double

  template <class V>
  static HWY_INLINE void sum(const V* in, const V*, const V*, V* sums) {
    sums[0] = hn::MulAdd(in[kDy], in[kY], sums[0]);
  }

  template <class W, class V>
  static HWY_INLINE auto finish(const V* totals, const double* scalars, V* row) {
    const Tag<double> d;
    const auto rounded = [&](Vector<double> v) HWY_ATTR { return widen_to_double(d, narrow_double<W>(d, v)); };
    const auto factor = rounded(splat(scalars[kScaleFactor]));  // as map gets it
    row[kTotal] = rounded(hn::Mul(totals[0], factor));
    if constexpr (kRest < kTerms) row[kRest] = hn::MulSub(totals[0], factor, row[kTotal]);
    return hn::Le(hn::Abs(row[kTotal]), splat(kMostSum<W>));
  }

  template <class V>
  static HWY_INLINE V map(const V* in, const V*, const V* row, V*) {
    const V difference = hn::MulSub(in[kDy], row[kFactor], row[kTotal]);
    return hn::Mul(hn::Mul(sizeof(T) == 2 ? difference : hn::Sub(difference, row[kRest]), in[kY]), row[kPower]);
  }
};

template <class T>
RowKernels<Wide<T>> softmax_backward_kernels() {
  return row_kernels<SoftmaxBackwardProgram<T>, T>();
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace descend::kernels::DESCEND_TARGET {
namespace {

void exact_sums(int64_t n, const double* const* in, const double* const*, const double*, double* sums) {
  for (int64_t c = 0; c < n; ++c) sums[0] += in[0][c] * in[1][c];
}

void exact_map(int64_t n, const double* const* in, const double* const*, const double* scale, const double* totals,
               double* dx, double* const*) {
  for (int64_t c = 0; c < n; ++c) {
    dx[c] = scale[0] * scale[1] * (in[0][c] * in[1][c] - in[1][c] * totals[0]);
  }
}

// 1, where the scale alone will do as a factor: it is neither above 1 nor so small that products with it lose bits.
template <class W>
double power_of(double scale) {
  if (!std::isfinite(scale) || scale == 0 || (0x1p-64 <= std::abs(scale) && std::abs(scale) <= 1)) return 1;
  int exponent;
  std::frexp(scale, &exponent);
  return std::ldexp(1.0, std::min(exponent, std::numeric_limits<W>::max_exponent - 1));
}

}  // namespace

template <class T>
size_t scaled_masked_softmax_backward_scratch(int64_t rows, int64_t columns) {
  return forward_scratch(rows, columns, kElementOf<T>, 0, 2);
}

template <class T>
void scaled_masked_softmax_backward(const ScaledMaskedSoftmaxBackward<T>& p, void* scratch) {
  using W = Wide<T>;
  static const RowOperator<W> op{
      .kernels = softmax_backward_kernels<T>(), .exact_sums = exact_sums, .exact_map = exact_map};
  const double power = power_of<W>(p.scale);
  const RowProblem<W> problem{.rows = p.rows,
                              .columns = p.columns,
                              .element = kElementOf<T>,
                              .in = {stream_of(p.dy), stream_of(p.y)},
                              .out = stream_of(p.dx),
                              .scalars = {p.scale / power, power},  // exact: the caller may round in any way
                              .mask = p.mask,
                              .parameters = {},
                              .sums = {}};
  run_forward(problem, op, scratch);
}

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_KERNEL(size_t, scaled_masked_softmax_backward_scratch, (int64_t rows, int64_t columns), rows, columns)
DESCEND_KERNEL(void, scaled_masked_softmax_backward, (const ScaledMaskedSoftmaxBackward<T>& problem, void* scratch),
               problem, scratch)
