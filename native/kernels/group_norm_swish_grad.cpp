#include "kernels/group_norm_grad.h"
#include "kernels/groups/gradient-inl.h"
#include "kernels/simd/dispatch.h"

namespace descend::kernels::DESCEND_TARGET {

template <class T>
size_t group_norm_swish_grad_scratch(const GroupShape& shape) {
  return gradient_scratch<T, true>(shape);
}

template <class T>
void group_norm_swish_grad(const GroupNormGrad<T, true>& p, void* scratch) {
  run_gradient(p, scratch);
}

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_KERNEL(size_t, group_norm_swish_grad_scratch, (const GroupShape& shape), shape)
DESCEND_KERNEL(void, group_norm_swish_grad, (const GroupNormGrad<T, true>& problem, void* scratch), problem, scratch)
