// Written by `python -m tools.generate` from the operator's table; do not edit.
#include "aclnnop/aclnn_group_norm_silu.h"

#include "capi/operator_call.h"
#include "operators/registry.h"

aclnnStatus aclnnGroupNormSiluGetWorkspaceSize(const aclTensor* self, const aclTensor* gamma, const aclTensor* beta,
                                               int64_t group, double eps, aclTensor* out, aclTensor* meanOut,
                                               aclTensor* rstdOut, uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(descend::group_norm_silu, workspaceSize, executor, self, gamma, beta, group,
                                           eps, out, meanOut, rstdOut);
}

aclnnStatus aclnnGroupNormSilu(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch(descend::group_norm_silu, workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnGroupNormSiluV2GetWorkspaceSize(const aclTensor* self, const aclTensor* gamma, const aclTensor* beta,
                                                 int64_t group, double eps, bool activateSilu, aclTensor* out,
                                                 aclTensor* meanOut, aclTensor* rstdOut, uint64_t* workspaceSize,
                                                 aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(*descend::group_norm_silu.variants()[0], workspaceSize, executor, self,
                                           gamma, beta, group, eps, activateSilu, out, meanOut, rstdOut);
}

aclnnStatus aclnnGroupNormSiluV2(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch(*descend::group_norm_silu.variants()[0], workspace, workspaceSize, executor, stream);
}
