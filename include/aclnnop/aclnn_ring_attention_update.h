/* PyTorch computes these functions, under torch_npu. See docs/npu-operators.md.

   Written by `python -m tools.generate` from the operator's table; do not edit. */
#ifndef DESCEND_ACLNNOP_ACLNN_RING_ATTENTION_UPDATE_H_
#define DESCEND_ACLNNOP_ACLNN_RING_ATTENTION_UPDATE_H_

#include "../aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnRingAttentionUpdateGetWorkspaceSize(
    const aclTensor* prevAttnOut, const aclTensor* prevSoftmaxMax, const aclTensor* prevSoftmaxSum,
    const aclTensor* curAttnOut, const aclTensor* curSoftmaxMax, const aclTensor* curSoftmaxSum,
    const aclTensor* actualSeqQlenOptional, char* inputLayout, const aclTensor* attnOut, const aclTensor* softmaxMax,
    const aclTensor* softmaxSum, uint64_t* workspaceSize, aclOpExecutor** executor);

ACL_FUNC_VISIBILITY aclnnStatus aclnnRingAttentionUpdate(void* workspace, uint64_t workspaceSize,
                                                         aclOpExecutor* executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACLNNOP_ACLNN_RING_ATTENTION_UPDATE_H_ */
