// Written by `python -m tools.generate` from the operator's table; do not edit.
#include "aclnnop/aclnn_cross_entropy_loss.h"

#include "capi/operator_call.h"
#include "operators/registry.h"

aclnnStatus aclnnCrossEntropyLossGetWorkspaceSize(const aclTensor* input, const aclTensor* target,
                                                  const aclTensor* weightOptional, char* reductionOptional,
                                                  int64_t ignoreIndex, double labelSmoothing,
                                                  double lseSquareScaleForZloss, bool returnZloss,
                                                  const aclTensor* lossOut, const aclTensor* logProbOut,
                                                  const aclTensor* zlossOut, const aclTensor* lseForZlossOut,
                                                  uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(
      descend::cross_entropy_loss, workspaceSize, executor, input, target, weightOptional, reductionOptional,
      ignoreIndex, labelSmoothing, lseSquareScaleForZloss, returnZloss, lossOut, logProbOut, zlossOut, lseForZlossOut);
}

aclnnStatus aclnnCrossEntropyLoss(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                  aclrtStream stream) {
  return descend::capi::launch(descend::cross_entropy_loss, workspace, workspaceSize, executor, stream);
}
