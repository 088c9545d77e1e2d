// Written by `python -m tools.generate` from the operator's table; do not edit.
#include "aclnnop/aclnn_swi_glu.h"

#include "capi/operator_call.h"
#include "operators/registry.h"

aclnnStatus aclnnSwiGluGetWorkspaceSize(const aclTensor* x, int64_t dim, const aclTensor* out, uint64_t* workspaceSize,
                                        aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(descend::swi_glu, workspaceSize, executor, x, dim, out);
}

aclnnStatus aclnnSwiGlu(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch(descend::swi_glu, workspace, workspaceSize, executor, stream);
}
