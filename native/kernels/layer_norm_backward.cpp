#include "kernels/layer_norm_backward.h"

#define HWY_TARGET_INCLUDE "kernels/layer_norm_backward.cpp"
#include "kernels/dispatch.h"
#include "kernels/norm_backward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

template <class T>
NormBackwardKernels<T> layer_norm_backward_kernels() {
  return {norm_backward_rows<LayerNorm, T>, norm_backward_block_sums<LayerNorm, T>, norm_backward_results<LayerNorm, T>,
          norm_backward_wild_sums<LayerNorm, T>};
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace descend::kernels {

template <class T>
int64_t layer_norm_backward_slots(int64_t rows, int64_t columns) {
  return norm_backward_slots<T>(rows, columns);
}

template <class T>
size_t layer_norm_backward_scratch(int64_t rows, int64_t columns) {
  return norm_backward_scratch<T>(rows, columns);
}

template <class T>
void layer_norm_backward(const LayerNormBackward<T>& p, void* scratch) {
  static const NormBackwardKernels<T> kernels = DESCEND_CHOOSE(layer_norm_backward_kernels<T>)();
  norm_backward<T>({.rows = p.rows,
                    .columns = p.columns,
                    .dy = p.dy,
                    .x = p.x,
                    .mean = p.mean,
                    .rstd = p.rstd,
                    .gamma = p.gamma,
                    .dx = p.dx,
                    .dgamma = p.dgamma,
                    .dbeta = p.dbeta},
                   kernels, scratch);
}

#define DESCEND_INSTANTIATE(T)                                                   \
  template int64_t layer_norm_backward_slots<T>(int64_t rows, int64_t columns);  \
  template size_t layer_norm_backward_scratch<T>(int64_t rows, int64_t columns); \
  template void layer_norm_backward<T>(const LayerNormBackward<T>& problem, void* scratch);
DESCEND_INSTANTIATE(float16)
DESCEND_INSTANTIATE(bfloat16)
DESCEND_INSTANTIATE(float)
DESCEND_INSTANTIATE(double)

}  // namespace descend::kernels
#endif  // HWY_ONCE
