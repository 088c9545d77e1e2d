#include "kernels/rows/moments.h"
#include "kernels/rows/norm_finish-inl.h"
#include "kernels/rows/operator.h"
#include "kernels/rows/shared-inl.h"
#include "kernels/simd/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Layer norm's gradient of x1 + x2; dx gets what else came in for the sum.
struct AddLayerNormGradProgram : LayerNormGradient {
  enum Input { kDy, kX, kX2, kDsum, kInputs };

  template <class T>
  static RowKernels<Wide<T>> kernels() {
    return row_kernels<AddLayerNormGradProgram, T>();
  }

  template <class V>
  static HWY_INLINE void combine(V* in, const V*) {
    in[kX] = hn::Add(in[kX], in[kX2]);
  }

  template <class V>
  static HWY_INLINE V map(const V* in, const V* column, const V* row, V* sums) {
    return hn::Add(LayerNormGradient::map(in, column, row, sums), in[kDsum]);
  }

  template <class V>
  static HWY_INLINE V map_single(const V* in, const V* row) {
    return hn::Add(LayerNormGradient::map_single(in, row), in[kDsum]);
  }
};

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace descend::kernels::DESCEND_TARGET {
namespace {

constexpr auto exact_sums = sum_layer_norm_gradient;

void exact_map(int64_t n, const double* const* in, const double* const* column, const double* row, const double* means,
               double* dx, double* const* sums) {
  map_layer_norm_gradient(n, in, column, row, means, dx, sums);
  for (int64_t c = 0; c < n; ++c) dx[c] += in[3][c];
}

void exact_combine(int64_t n, double* const* in, const double*) {
  for (int64_t c = 0; c < n; ++c) in[1][c] += in[2][c];
}

}  // namespace

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_ROW_GRADIENT(add_layer_norm_grad, AddLayerNormGradProgram, .exact_combine = exact_combine)
