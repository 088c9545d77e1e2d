// Written by `python -m tools.generate` from the operator's table; do not edit.
#include "aclnnop/aclnn_gelu_v2.h"

#include "capi/operator_call.h"
#include "operators/registry.h"

aclnnStatus aclnnGeluV2GetWorkspaceSize(const aclTensor* x, int64_t approximate, aclTensor* y, uint64_t* workspaceSize,
                                        aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(descend::gelu_v2, workspaceSize, executor, x, approximate, y);
}

aclnnStatus aclnnGeluV2(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch(descend::gelu_v2, workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnGeluGetWorkspaceSize(const aclTensor* self, aclTensor* out, uint64_t* workspaceSize,
                                      aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(*descend::gelu_v2.variants()[0], workspaceSize, executor, self, out);
}

aclnnStatus aclnnGelu(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch(*descend::gelu_v2.variants()[0], workspace, workspaceSize, executor, stream);
}
