/* Gradients of RMS norm with respect to its input and its weight. See docs/operators/rms_norm_grad.md.

   Written by `python -m tools.generate` from the operator's table; do not edit. */
#ifndef DESCEND_ACLNNOP_ACLNN_RMS_NORM_GRAD_H_
#define DESCEND_ACLNNOP_ACLNN_RMS_NORM_GRAD_H_

#include "../aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnRmsNormGradGetWorkspaceSize(const aclTensor* dy, const aclTensor* x,
                                                                 const aclTensor* rstd, const aclTensor* gamma,
                                                                 const aclTensor* dxOut, const aclTensor* dgammaOut,
                                                                 uint64_t* workspaceSize, aclOpExecutor** executor);

ACL_FUNC_VISIBILITY aclnnStatus aclnnRmsNormGrad(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                                 aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACLNNOP_ACLNN_RMS_NORM_GRAD_H_ */
