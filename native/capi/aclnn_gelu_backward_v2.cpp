// Written by `python -m tools.generate` from the operator's table; do not edit.
#include "aclnnop/aclnn_gelu_backward_v2.h"

#include "capi/operator_call.h"
#include "operators/registry.h"

aclnnStatus aclnnGeluBackwardV2GetWorkspaceSize(const aclTensor* gradOutput, const aclTensor* self, char* approximate,
                                                aclTensor* gradInput, uint64_t* workspaceSize,
                                                aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(descend::gelu_backward_v2, workspaceSize, executor, gradOutput, self,
                                           approximate, gradInput);
}

aclnnStatus aclnnGeluBackwardV2(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch(descend::gelu_backward_v2, workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnGeluBackwardGetWorkspaceSize(const aclTensor* gradOutput, const aclTensor* self,
                                              const aclTensor* gradInput, uint64_t* workspaceSize,
                                              aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(*descend::gelu_backward_v2.variants()[0], workspaceSize, executor,
                                           gradOutput, self, gradInput);
}

aclnnStatus aclnnGeluBackward(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch(*descend::gelu_backward_v2.variants()[0], workspace, workspaceSize, executor, stream);
}
