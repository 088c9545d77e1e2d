// Written by `python -m tools.generate` from the operator's table; do not edit.
#include "aclnnop/aclnn_gemma_rms_norm.h"

#include "capi/operator_call.h"
#include "operators/registry.h"

aclnnStatus aclnnGemmaRmsNormGetWorkspaceSize(const aclTensor* x, const aclTensor* gamma, double epsilon,
                                              const aclTensor* yOut, const aclTensor* rstdOut, uint64_t* workspaceSize,
                                              aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(descend::gemma_rms_norm, workspaceSize, executor, x, gamma, epsilon, yOut,
                                           rstdOut);
}

aclnnStatus aclnnGemmaRmsNorm(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch(descend::gemma_rms_norm, workspace, workspaceSize, executor, stream);
}
