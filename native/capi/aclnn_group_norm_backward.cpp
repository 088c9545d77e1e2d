// Written by `python -m tools.generate` from the operator's table; do not edit.
#include "aclnnop/aclnn_group_norm_backward.h"

#include "capi/operator_call.h"
#include "operators/registry.h"

aclnnStatus aclnnGroupNormBackwardGetWorkspaceSize(const aclTensor* gradOut, const aclTensor* input,
                                                   const aclTensor* mean, const aclTensor* rstd, const aclTensor* gamma,
                                                   int64_t N, int64_t C, int64_t HxW, int64_t group,
                                                   const aclBoolArray* outputMask, aclTensor* gradInput,
                                                   aclTensor* gradGammaOut, aclTensor* gradBetaOut,
                                                   uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(descend::group_norm_backward, workspaceSize, executor, gradOut, input, mean,
                                           rstd, gamma, N, C, HxW, group, outputMask, gradInput, gradGammaOut,
                                           gradBetaOut);
}

aclnnStatus aclnnGroupNormBackward(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                   aclrtStream stream) {
  return descend::capi::launch(descend::group_norm_backward, workspace, workspaceSize, executor, stream);
}
