#include "kernels/rms_norm_grad.h"

#define HWY_TARGET_INCLUDE "kernels/rms_norm_grad.cpp"
#include "kernels/dispatch.h"
#include "kernels/norm_backward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

template <class T>
NormBackwardKernels<T> rms_norm_grad_kernels() {
  return {norm_backward_rows<RmsNorm, T>, norm_backward_block_sums<RmsNorm, T>, norm_backward_results<RmsNorm, T>,
          norm_backward_wild_sums<RmsNorm, T>};
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace descend::kernels {

template <class T>
int64_t rms_norm_grad_slots(int64_t rows, int64_t columns) {
  return norm_backward_slots<T>(rows, columns);
}

template <class T>
size_t rms_norm_grad_scratch(int64_t rows, int64_t columns) {
  return norm_backward_scratch<T>(rows, columns);
}

template <class T>
void rms_norm_grad(const RmsNormGrad<T>& p, void* scratch) {
  static const NormBackwardKernels<T> kernels = DESCEND_CHOOSE(rms_norm_grad_kernels<T>)();
  norm_backward<T>({.rows = p.rows,
                    .columns = p.columns,
                    .dy = p.dy,
                    .x = p.x,
                    .mean = nullptr,
                    .rstd = p.rstd,
                    .gamma = p.gamma,
                    .dx = p.dx,
                    .dgamma = p.dgamma,
                    .dbeta = {}},
                   kernels, scratch);
}

#define DESCEND_INSTANTIATE(T)                                             \
  template int64_t rms_norm_grad_slots<T>(int64_t rows, int64_t columns);  \
  template size_t rms_norm_grad_scratch<T>(int64_t rows, int64_t columns); \
  template void rms_norm_grad<T>(const RmsNormGrad<T>& problem, void* scratch);
DESCEND_INSTANTIATE(float16)
DESCEND_INSTANTIATE(bfloat16)
DESCEND_INSTANTIATE(float)
DESCEND_INSTANTIATE(double)

}  // namespace descend::kernels
#endif  // HWY_ONCE
