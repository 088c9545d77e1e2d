// Written by `python -m tools.generate` from the operator's table; do not edit.
#include "aclnnop/aclnn_add_layer_norm_grad.h"

#include "capi/operator_call.h"
#include "operators/registry.h"

aclnnStatus aclnnAddLayerNormGradGetWorkspaceSize(const aclTensor* dy, const aclTensor* x1, const aclTensor* x2,
                                                  const aclTensor* rstd, const aclTensor* mean, const aclTensor* gamma,
                                                  const aclTensor* dsumOptional, const aclTensor* dxOut,
                                                  const aclTensor* dgammaOut, const aclTensor* dbetaOut,
                                                  uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(descend::add_layer_norm_grad, workspaceSize, executor, dy, x1, x2, rstd,
                                           mean, gamma, dsumOptional, dxOut, dgammaOut, dbetaOut);
}

aclnnStatus aclnnAddLayerNormGrad(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                  aclrtStream stream) {
  return descend::capi::launch(descend::add_layer_norm_grad, workspace, workspaceSize, executor, stream);
}
