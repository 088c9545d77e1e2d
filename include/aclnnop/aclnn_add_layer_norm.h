/* Layer norm of a sum; and the sum. See docs/operators/add_layer_norm.md.

   Written by `python -m tools.generate` from the operator's table; do not edit. */
#ifndef DESCEND_ACLNNOP_ACLNN_ADD_LAYER_NORM_H_
#define DESCEND_ACLNNOP_ACLNN_ADD_LAYER_NORM_H_

#include "../aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnAddLayerNormGetWorkspaceSize(const aclTensor* x1, const aclTensor* x2,
                                                                  const aclTensor* gamma, const aclTensor* beta,
                                                                  const aclTensor* biasOptional, double epsilon,
                                                                  bool additionalOutput, const aclTensor* yOut,
                                                                  const aclTensor* meanOut, const aclTensor* rstdOut,
                                                                  const aclTensor* xOut, uint64_t* workspaceSize,
                                                                  aclOpExecutor** executor);

ACL_FUNC_VISIBILITY aclnnStatus aclnnAddLayerNorm(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                                  aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACLNNOP_ACLNN_ADD_LAYER_NORM_H_ */
