// Written by `python -m tools.generate` from the operator's table; do not edit.
#include "aclnnop/aclnn_deep_norm.h"

#include "capi/operator_call.h"
#include "operators/registry.h"

aclnnStatus aclnnDeepNormGetWorkspaceSize(const aclTensor* x, const aclTensor* gx, const aclTensor* beta,
                                          const aclTensor* gamma, double alpha, double epsilon,
                                          const aclTensor* meanOut, const aclTensor* rstdOut, const aclTensor* yOut,
                                          uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(descend::deep_norm, workspaceSize, executor, x, gx, beta, gamma, alpha,
                                           epsilon, meanOut, rstdOut, yOut);
}

aclnnStatus aclnnDeepNorm(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch(descend::deep_norm, workspace, workspaceSize, executor, stream);
}
