/* Gradients of deep norm, which is layer norm of alpha * x + gx. See docs/operators/deep_norm_grad.md.

   Written by `python -m tools.generate` from the operator's table; do not edit. */
#ifndef DESCEND_ACLNNOP_ACLNN_DEEP_NORM_GRAD_H_
#define DESCEND_ACLNNOP_ACLNN_DEEP_NORM_GRAD_H_

#include "../aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnDeepNormGradGetWorkspaceSize(
    const aclTensor* dy, const aclTensor* x, const aclTensor* gx, const aclTensor* gamma, const aclTensor* mean,
    const aclTensor* rstd, double alpha, const aclTensor* dxOut, const aclTensor* dgxOut, const aclTensor* dbetaOut,
    const aclTensor* dgammaOut, uint64_t* workspaceSize, aclOpExecutor** executor);

ACL_FUNC_VISIBILITY aclnnStatus aclnnDeepNormGrad(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                                  aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACLNNOP_ACLNN_DEEP_NORM_GRAD_H_ */
