// Written by `python -m tools.generate` from the operator's table; do not edit.
#include "aclnnop/aclnn_scaled_masked_softmax.h"

#include "capi/operator_call.h"
#include "operators/registry.h"

aclnnStatus aclnnScaledMaskedSoftmaxGetWorkspaceSize(const aclTensor* x, const aclTensor* mask, double scale,
                                                     bool fixTriuMask, aclTensor* y, uint64_t* workspaceSize,
                                                     aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(descend::scaled_masked_softmax, workspaceSize, executor, x, mask, scale,
                                           fixTriuMask, y);
}

aclnnStatus aclnnScaledMaskedSoftmax(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                     aclrtStream stream) {
  return descend::capi::launch(descend::scaled_masked_softmax, workspace, workspaceSize, executor, stream);
}
