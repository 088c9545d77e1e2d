// Written by `python -m tools.generate` from the operator's table; do not edit.
#include "aclnnop/aclnn_rms_norm_grad.h"

#include "capi/operator_call.h"
#include "operators/registry.h"

aclnnStatus aclnnRmsNormGradGetWorkspaceSize(const aclTensor* dy, const aclTensor* x, const aclTensor* rstd,
                                             const aclTensor* gamma, const aclTensor* dxOut, const aclTensor* dgammaOut,
                                             uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(descend::rms_norm_grad, workspaceSize, executor, dy, x, rstd, gamma, dxOut,
                                           dgammaOut);
}

aclnnStatus aclnnRmsNormGrad(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch(descend::rms_norm_grad, workspace, workspaceSize, executor, stream);
}
