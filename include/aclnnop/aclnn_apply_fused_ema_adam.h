/* PyTorch computes these functions, under torch_npu. See docs/npu-operators.md.

   Written by `python -m tools.generate` from the operator's table; do not edit. */
#ifndef DESCEND_ACLNNOP_ACLNN_APPLY_FUSED_EMA_ADAM_H_
#define DESCEND_ACLNNOP_ACLNN_APPLY_FUSED_EMA_ADAM_H_

#include "../aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnApplyFusedEmaAdamGetWorkspaceSize(
    const aclTensor* grad, const aclTensor* var, const aclTensor* m, const aclTensor* v, const aclTensor* s,
    const aclTensor* step, double lr, double emaDecay, double beta1, double beta2, double eps, int64_t mode,
    bool biasCorrection, double weightDecay, uint64_t* workspaceSize, aclOpExecutor** executor);

ACL_FUNC_VISIBILITY aclnnStatus aclnnApplyFusedEmaAdam(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                                       aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACLNNOP_ACLNN_APPLY_FUSED_EMA_ADAM_H_ */
