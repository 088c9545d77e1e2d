// Written by `python -m tools.generate` from the operator's table; do not edit.
#include "aclnnop/aclnn_rotary_position_embedding.h"

#include "capi/operator_call.h"
#include "operators/registry.h"

aclnnStatus aclnnRotaryPositionEmbeddingGetWorkspaceSize(const aclTensor* x, const aclTensor* cos, const aclTensor* sin,
                                                         int64_t mode, aclTensor* out, uint64_t* workspaceSize,
                                                         aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(descend::rotary_position_embedding, workspaceSize, executor, x, cos, sin,
                                           mode, out);
}

aclnnStatus aclnnRotaryPositionEmbedding(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                         aclrtStream stream) {
  return descend::capi::launch(descend::rotary_position_embedding, workspace, workspaceSize, executor, stream);
}
