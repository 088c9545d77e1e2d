/* Gradients of group norm followed by swish, with respect to its input, weight and bias. See
   docs/operators/group_norm_swish_grad.md.

   Written by `python -m tools.generate` from the operator's table; do not edit. */
#ifndef DESCEND_ACLNNOP_ACLNN_GROUP_NORM_SWISH_GRAD_H_
#define DESCEND_ACLNNOP_ACLNN_GROUP_NORM_SWISH_GRAD_H_

#include "../aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnGroupNormSwishGradGetWorkspaceSize(
    const aclTensor* dy, const aclTensor* mean, const aclTensor* rstd, const aclTensor* x, const aclTensor* gamma,
    const aclTensor* beta, int64_t numGroups, char* dataFormatOptional, double swishScale, bool dgammaIsRequire,
    bool dbetaIsRequire, const aclTensor* dxOut, const aclTensor* dgammaOut, const aclTensor* dbetaOut,
    uint64_t* workspaceSize, aclOpExecutor** executor);

ACL_FUNC_VISIBILITY aclnnStatus aclnnGroupNormSwishGrad(void* workspace, uint64_t workspaceSize,
                                                        aclOpExecutor* executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACLNNOP_ACLNN_GROUP_NORM_SWISH_GRAD_H_ */
