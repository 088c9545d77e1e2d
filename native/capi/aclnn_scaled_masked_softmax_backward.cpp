// Written by `python -m tools.generate` from the operator's table; do not edit.
#include "aclnnop/aclnn_scaled_masked_softmax_backward.h"

#include "capi/operator_call.h"
#include "operators/registry.h"

aclnnStatus aclnnScaledMaskedSoftmaxBackwardGetWorkspaceSize(const aclTensor* gradOutput, const aclTensor* y,
                                                             const aclTensor* mask, double scale, bool fixTriuMask,
                                                             aclTensor* out, uint64_t* workspaceSize,
                                                             aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(descend::scaled_masked_softmax_backward, workspaceSize, executor, gradOutput,
                                           y, mask, scale, fixTriuMask, out);
}

aclnnStatus aclnnScaledMaskedSoftmaxBackward(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                             aclrtStream stream) {
  return descend::capi::launch(descend::scaled_masked_softmax_backward, workspace, workspaceSize, executor, stream);
}
