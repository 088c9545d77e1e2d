// Written by `python -m tools.generate` from the operator's table; do not edit.
#include "aclnnop/aclnn_group_norm.h"

#include "capi/operator_call.h"
#include "operators/registry.h"

aclnnStatus aclnnGroupNormGetWorkspaceSize(const aclTensor* self, const aclTensor* gamma, const aclTensor* beta,
                                           int64_t N, int64_t C, int64_t HxW, int64_t group, double eps, aclTensor* out,
                                           aclTensor* meanOut, aclTensor* rstdOut, uint64_t* workspaceSize,
                                           aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(descend::group_norm, workspaceSize, executor, self, gamma, beta, N, C, HxW,
                                           group, eps, out, meanOut, rstdOut);
}

aclnnStatus aclnnGroupNorm(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch(descend::group_norm, workspace, workspaceSize, executor, stream);
}
