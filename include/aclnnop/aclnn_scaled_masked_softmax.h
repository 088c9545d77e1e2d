/* Softmax over the last axis of a scaled input, some positions masked. See docs/operators/scaled_masked_softmax.md.

   Written by `python -m tools.generate` from the operator's table; do not edit. */
#ifndef DESCEND_ACLNNOP_ACLNN_SCALED_MASKED_SOFTMAX_H_
#define DESCEND_ACLNNOP_ACLNN_SCALED_MASKED_SOFTMAX_H_

#include "../aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnScaledMaskedSoftmaxGetWorkspaceSize(const aclTensor* x, const aclTensor* mask,
                                                                         double scale, bool fixTriuMask, aclTensor* y,
                                                                         uint64_t* workspaceSize,
                                                                         aclOpExecutor** executor);

ACL_FUNC_VISIBILITY aclnnStatus aclnnScaledMaskedSoftmax(void* workspace, uint64_t workspaceSize,
                                                         aclOpExecutor* executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACLNNOP_ACLNN_SCALED_MASKED_SOFTMAX_H_ */
