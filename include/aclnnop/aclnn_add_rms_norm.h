/* RMS norm of a sum: each row divided by its root mean square, times a weight; and the sum. See
   docs/operators/add_rms_norm.md.

   Written by `python -m tools.generate` from the operator's table; do not edit. */
#ifndef DESCEND_ACLNNOP_ACLNN_ADD_RMS_NORM_H_
#define DESCEND_ACLNNOP_ACLNN_ADD_RMS_NORM_H_

#include "../aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnAddRmsNormGetWorkspaceSize(const aclTensor* x1, const aclTensor* x2,
                                                                const aclTensor* gamma, double epsilon, aclTensor* yOut,
                                                                aclTensor* rstdOut, aclTensor* xOut,
                                                                uint64_t* workspaceSize, aclOpExecutor** executor);

ACL_FUNC_VISIBILITY aclnnStatus aclnnAddRmsNorm(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                                aclrtStream stream);

/* The same in place: x1Ref becomes yOut, and x2Ref xOut. */
ACL_FUNC_VISIBILITY aclnnStatus aclnnInplaceAddRmsNormGetWorkspaceSize(aclTensor* x1Ref, aclTensor* x2Ref,
                                                                       const aclTensor* gamma, double epsilon,
                                                                       const aclTensor* rstdOut,
                                                                       uint64_t* workspaceSize,
                                                                       aclOpExecutor** executor);

ACL_FUNC_VISIBILITY aclnnStatus aclnnInplaceAddRmsNorm(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                                       aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACLNNOP_ACLNN_ADD_RMS_NORM_H_ */
