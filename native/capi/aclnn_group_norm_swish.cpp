// Written by `python -m tools.generate` from the operator's table; do not edit.
#include "aclnnop/aclnn_group_norm_swish.h"

#include "capi/operator_call.h"
#include "operators/registry.h"

aclnnStatus aclnnGroupNormSwishGetWorkspaceSize(const aclTensor* x, const aclTensor* gamma, const aclTensor* beta,
                                                int64_t numGroups, char* dataFormatOptional, double eps,
                                                bool activateSwish, double swishScale, const aclTensor* yOut,
                                                const aclTensor* meanOut, const aclTensor* rstdOut,
                                                uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(descend::group_norm_swish, workspaceSize, executor, x, gamma, beta,
                                           numGroups, dataFormatOptional, eps, activateSwish, swishScale, yOut, meanOut,
                                           rstdOut);
}

aclnnStatus aclnnGroupNormSwish(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch(descend::group_norm_swish, workspace, workspaceSize, executor, stream);
}
