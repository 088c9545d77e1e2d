/* Deep norm, which is layer norm of alpha * x + gx. See docs/operators/deep_norm.md.

   Written by `python -m tools.generate` from the operator's table; do not edit. */
#ifndef DESCEND_ACLNNOP_ACLNN_DEEP_NORM_H_
#define DESCEND_ACLNNOP_ACLNN_DEEP_NORM_H_

#include "../aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnDeepNormGetWorkspaceSize(const aclTensor* x, const aclTensor* gx,
                                                              const aclTensor* beta, const aclTensor* gamma,
                                                              double alpha, double epsilon, const aclTensor* meanOut,
                                                              const aclTensor* rstdOut, const aclTensor* yOut,
                                                              uint64_t* workspaceSize, aclOpExecutor** executor);

ACL_FUNC_VISIBILITY aclnnStatus aclnnDeepNorm(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                              aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACLNNOP_ACLNN_DEEP_NORM_H_ */
