#include "kernels/rows/moments.h"
#include "kernels/rows/norm_finish-inl.h"
#include "kernels/rows/operator.h"
#include "kernels/rows/shared-inl.h"
#include "kernels/simd/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

struct LayerNormBackwardProgram : LayerNormGradient {
  template <class T>
  static RowKernels<Wide<T>> kernels() {
    return row_kernels<LayerNormBackwardProgram, T>();
  }
};

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace descend::kernels::DESCEND_TARGET {
namespace {

constexpr auto exact_sums = sum_layer_norm_gradient;
constexpr auto exact_map = map_layer_norm_gradient;

}  // namespace

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_ROW_GRADIENT(layer_norm_backward, LayerNormBackwardProgram)
