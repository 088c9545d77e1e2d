// Written by `python -m tools.generate` from the operator's table; do not edit.
#include "aclnnop/aclnn_add_layer_norm.h"

#include "capi/operator_call.h"
#include "operators/registry.h"

aclnnStatus aclnnAddLayerNormGetWorkspaceSize(const aclTensor* x1, const aclTensor* x2, const aclTensor* gamma,
                                              const aclTensor* beta, const aclTensor* biasOptional, double epsilon,
                                              bool additionalOutput, const aclTensor* yOut, const aclTensor* meanOut,
                                              const aclTensor* rstdOut, const aclTensor* xOut, uint64_t* workspaceSize,
                                              aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(descend::add_layer_norm, workspaceSize, executor, x1, x2, gamma, beta,
                                           biasOptional, epsilon, additionalOutput, yOut, meanOut, rstdOut, xOut);
}

aclnnStatus aclnnAddLayerNorm(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch(descend::add_layer_norm, workspace, workspaceSize, executor, stream);
}
