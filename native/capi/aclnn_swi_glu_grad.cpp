// Written by `python -m tools.generate` from the operator's table; do not edit.
#include "aclnnop/aclnn_swi_glu_grad.h"

#include "capi/operator_call.h"
#include "operators/registry.h"

aclnnStatus aclnnSwiGluGradGetWorkspaceSize(const aclTensor* yGrad, const aclTensor* x, int64_t dim,
                                            const aclTensor* out, uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(descend::swi_glu_grad, workspaceSize, executor, yGrad, x, dim, out);
}

aclnnStatus aclnnSwiGluGrad(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch(descend::swi_glu_grad, workspace, workspaceSize, executor, stream);
}
