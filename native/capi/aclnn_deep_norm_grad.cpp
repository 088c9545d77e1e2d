// Written by `python -m tools.generate` from the operator's table; do not edit.
#include "aclnnop/aclnn_deep_norm_grad.h"

#include "capi/operator_call.h"
#include "operators/registry.h"

aclnnStatus aclnnDeepNormGradGetWorkspaceSize(const aclTensor* dy, const aclTensor* x, const aclTensor* gx,
                                              const aclTensor* gamma, const aclTensor* mean, const aclTensor* rstd,
                                              double alpha, const aclTensor* dxOut, const aclTensor* dgxOut,
                                              const aclTensor* dbetaOut, const aclTensor* dgammaOut,
                                              uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(descend::deep_norm_grad, workspaceSize, executor, dy, x, gx, gamma, mean,
                                           rstd, alpha, dxOut, dgxOut, dbetaOut, dgammaOut);
}

aclnnStatus aclnnDeepNormGrad(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch(descend::deep_norm_grad, workspace, workspaceSize, executor, stream);
}
