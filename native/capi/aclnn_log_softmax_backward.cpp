// Written by `python -m tools.generate` from the operator's table; do not edit.
#include "aclnnop/aclnn_log_softmax_backward.h"

#include "capi/operator_call.h"
#include "operators/registry.h"

aclnnStatus aclnnLogSoftmaxBackwardGetWorkspaceSize(const aclTensor* gradOutput, const aclTensor* output, int64_t dim,
                                                    aclTensor* out, uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(descend::log_softmax_backward, workspaceSize, executor, gradOutput, output,
                                           dim, out);
}

aclnnStatus aclnnLogSoftmaxBackward(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                    aclrtStream stream) {
  return descend::capi::launch(descend::log_softmax_backward, workspace, workspaceSize, executor, stream);
}
