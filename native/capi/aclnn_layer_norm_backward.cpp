// Written by `python -m tools.generate` from the operator's table; do not edit.
#include "aclnnop/aclnn_layer_norm_backward.h"

#include "capi/operator_call.h"
#include "operators/registry.h"

aclnnStatus aclnnLayerNormBackwardGetWorkspaceSize(const aclTensor* gradOut, const aclTensor* input,
                                                   const aclIntArray* normalizedShape, const aclTensor* mean,
                                                   const aclTensor* rstd, const aclTensor* weightOptional,
                                                   const aclTensor* biasOptional, const aclBoolArray* outputMask,
                                                   aclTensor* gradInputOut, aclTensor* gradWeightOut,
                                                   aclTensor* gradBiasOut, uint64_t* workspaceSize,
                                                   aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(descend::layer_norm_backward, workspaceSize, executor, gradOut, input,
                                           normalizedShape, mean, rstd, weightOptional, biasOptional, outputMask,
                                           gradInputOut, gradWeightOut, gradBiasOut);
}

aclnnStatus aclnnLayerNormBackward(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                   aclrtStream stream) {
  return descend::capi::launch(descend::layer_norm_backward, workspace, workspaceSize, executor, stream);
}
