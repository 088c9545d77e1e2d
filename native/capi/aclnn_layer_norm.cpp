// Written by `python -m tools.generate` from the operator's table; do not edit.
#include "aclnnop/aclnn_layer_norm.h"

#include "capi/operator_call.h"
#include "operators/registry.h"

aclnnStatus aclnnLayerNormGetWorkspaceSize(const aclTensor* input, const aclIntArray* normalizedShape,
                                           const aclTensor* weightOptional, const aclTensor* biasOptional, double eps,
                                           aclTensor* out, aclTensor* meanOutOptional, aclTensor* rstdOutOptional,
                                           uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(descend::layer_norm, workspaceSize, executor, input, normalizedShape,
                                           weightOptional, biasOptional, eps, out, meanOutOptional, rstdOutOptional);
}

aclnnStatus aclnnLayerNorm(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch(descend::layer_norm, workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnLayerNormWithImplModeGetWorkspaceSize(const aclTensor* input, const aclIntArray* normalizedShape,
                                                       const aclTensor* weightOptional, const aclTensor* biasOptional,
                                                       double eps, aclTensor* out, aclTensor* meanOutOptional,
                                                       aclTensor* rstdOutOptional, int32_t implMode,
                                                       uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(*descend::layer_norm.variants()[0], workspaceSize, executor, input,
                                           normalizedShape, weightOptional, biasOptional, eps, out, meanOutOptional,
                                           rstdOutOptional, implMode);
}

aclnnStatus aclnnLayerNormWithImplMode(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                       aclrtStream stream) {
  return descend::capi::launch(*descend::layer_norm.variants()[0], workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnFastLayerNormGetWorkspaceSize(const aclTensor* input, const aclIntArray* normalizedShape,
                                               const aclTensor* weightOptional, const aclTensor* biasOptional,
                                               double eps, aclTensor* out, aclTensor* meanOutOptional,
                                               aclTensor* rstdOutOptional, uint64_t* workspaceSize,
                                               aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(*descend::layer_norm.variants()[1], workspaceSize, executor, input,
                                           normalizedShape, weightOptional, biasOptional, eps, out, meanOutOptional,
                                           rstdOutOptional);
}

aclnnStatus aclnnFastLayerNorm(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch(*descend::layer_norm.variants()[1], workspace, workspaceSize, executor, stream);
}
