// Written by `python -m tools.generate` from the operator's table; do not edit.
#include "aclnnop/aclnn_apply_adam_w_v2.h"

#include "capi/operator_call.h"
#include "operators/registry.h"

aclnnStatus aclnnApplyAdamWV2GetWorkspaceSize(aclTensor* varRef, aclTensor* mRef, aclTensor* vRef,
                                              aclTensor* maxGradNormOptionalRef, const aclTensor* grad,
                                              const aclTensor* step, float lr, float beta1, float beta2,
                                              float weightDecay, float eps, bool amsgrad, bool maximize,
                                              uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(descend::apply_adam_w_v2, workspaceSize, executor, varRef, mRef, vRef,
                                           maxGradNormOptionalRef, grad, step, lr, beta1, beta2, weightDecay, eps,
                                           amsgrad, maximize);
}

aclnnStatus aclnnApplyAdamWV2(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch(descend::apply_adam_w_v2, workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnApplyAdamWGetWorkspaceSize(aclTensor* varRef, aclTensor* mRef, aclTensor* vRef,
                                            const aclTensor* beta1Power, const aclTensor* beta2Power,
                                            const aclTensor* lr, const aclTensor* weightDecay, const aclTensor* beta1,
                                            const aclTensor* beta2, const aclTensor* eps, const aclTensor* grad,
                                            const aclTensor* maxGradNormOptional, bool amsgrad, bool maximize,
                                            uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(*descend::apply_adam_w_v2.variants()[0], workspaceSize, executor, varRef,
                                           mRef, vRef, beta1Power, beta2Power, lr, weightDecay, beta1, beta2, eps, grad,
                                           maxGradNormOptional, amsgrad, maximize);
}

aclnnStatus aclnnApplyAdamW(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch(*descend::apply_adam_w_v2.variants()[0], workspace, workspaceSize, executor, stream);
}
