// Written by `python -m tools.generate` from the operator's table; do not edit.
#include "aclnnop/aclnn_cross_entropy_loss_grad.h"

#include "capi/operator_call.h"
#include "operators/registry.h"

aclnnStatus aclnnCrossEntropyLossGradGetWorkspaceSize(const aclTensor* gradLoss, const aclTensor* logProb,
                                                      const aclTensor* target, const aclTensor* weightOptional,
                                                      const aclTensor* gradZlossOptional,
                                                      const aclTensor* lseForZlossOptional, char* reductionOptional,
                                                      int64_t ignoreIndex, double labelSmoothing,
                                                      double lseSquareScaleForZloss, const aclTensor* out,
                                                      uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(descend::cross_entropy_loss_grad, workspaceSize, executor, gradLoss, logProb,
                                           target, weightOptional, gradZlossOptional, lseForZlossOptional,
                                           reductionOptional, ignoreIndex, labelSmoothing, lseSquareScaleForZloss, out);
}

aclnnStatus aclnnCrossEntropyLossGrad(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                      aclrtStream stream) {
  return descend::capi::launch(descend::cross_entropy_loss_grad, workspace, workspaceSize, executor, stream);
}
