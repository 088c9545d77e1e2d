#include "aclnnop/aclnn_layer_norm.h"

#include "capi/operator_call.h"

namespace descend {
extern const Operator layer_norm;
}

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
