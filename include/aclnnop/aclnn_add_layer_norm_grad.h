/* Gradients of layer norm of a sum. See docs/operators/add_layer_norm_grad.md.

   Written by `python -m tools.generate` from the operator's table; do not edit. */
#ifndef DESCEND_ACLNNOP_ACLNN_ADD_LAYER_NORM_GRAD_H_
#define DESCEND_ACLNNOP_ACLNN_ADD_LAYER_NORM_GRAD_H_

#include "../aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnAddLayerNormGradGetWorkspaceSize(
    const aclTensor* dy, const aclTensor* x1, const aclTensor* x2, const aclTensor* rstd, const aclTensor* mean,
    const aclTensor* gamma, const aclTensor* dsumOptional, const aclTensor* dxOut, const aclTensor* dgammaOut,
    const aclTensor* dbetaOut, uint64_t* workspaceSize, aclOpExecutor** executor);

ACL_FUNC_VISIBILITY aclnnStatus aclnnAddLayerNormGrad(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                                      aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACLNNOP_ACLNN_ADD_LAYER_NORM_GRAD_H_ */
