// Written by `python -m tools.generate` from the operator's table; do not edit.
#include "aclnnop/aclnn_softmax.h"

#include "capi/operator_call.h"
#include "operators/registry.h"

aclnnStatus aclnnSoftmaxGetWorkspaceSize(const aclTensor* self, int64_t dim, aclTensor* out, uint64_t* workspaceSize,
                                         aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(descend::softmax, workspaceSize, executor, self, dim, out);
}

aclnnStatus aclnnSoftmax(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch(descend::softmax, workspace, workspaceSize, executor, stream);
}
