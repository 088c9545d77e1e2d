// Written by `python -m tools.generate` from the operator's table; do not edit.
#include "aclnnop/aclnn_rotary_position_embedding_grad.h"

#include "capi/operator_call.h"
#include "operators/registry.h"

aclnnStatus aclnnRotaryPositionEmbeddingGradGetWorkspaceSize(const aclTensor* dy, const aclTensor* cos,
                                                             const aclTensor* sin, const aclTensor* xOptional,
                                                             int64_t mode, const aclTensor* dxOut,
                                                             const aclTensor* dcosOut, const aclTensor* dsinOut,
                                                             uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(descend::rotary_position_embedding_grad, workspaceSize, executor, dy, cos,
                                           sin, xOptional, mode, dxOut, dcosOut, dsinOut);
}

aclnnStatus aclnnRotaryPositionEmbeddingGrad(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                             aclrtStream stream) {
  return descend::capi::launch(descend::rotary_position_embedding_grad, workspace, workspaceSize, executor, stream);
}
