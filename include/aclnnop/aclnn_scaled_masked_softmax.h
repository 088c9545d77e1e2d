/* Scaled, masked softmax; see docs/operators/scaled_masked_softmax.md. */
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
