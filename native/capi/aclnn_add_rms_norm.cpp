// Written by `python -m tools.generate` from the operator's table; do not edit.
#include "aclnnop/aclnn_add_rms_norm.h"

#include "capi/operator_call.h"
#include "operators/registry.h"

aclnnStatus aclnnAddRmsNormGetWorkspaceSize(const aclTensor* x1, const aclTensor* x2, const aclTensor* gamma,
                                            double epsilon, aclTensor* yOut, aclTensor* rstdOut, aclTensor* xOut,
                                            uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(descend::add_rms_norm, workspaceSize, executor, x1, x2, gamma, epsilon, yOut,
                                           rstdOut, xOut);
}

aclnnStatus aclnnAddRmsNorm(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch(descend::add_rms_norm, workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnInplaceAddRmsNormGetWorkspaceSize(aclTensor* x1Ref, aclTensor* x2Ref, const aclTensor* gamma,
                                                   double epsilon, const aclTensor* rstdOut, uint64_t* workspaceSize,
                                                   aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(*descend::add_rms_norm.variants()[0], workspaceSize, executor, x1Ref, x2Ref,
                                           gamma, epsilon, rstdOut);
}

aclnnStatus aclnnInplaceAddRmsNorm(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                   aclrtStream stream) {
  return descend::capi::launch(*descend::add_rms_norm.variants()[0], workspace, workspaceSize, executor, stream);
}
