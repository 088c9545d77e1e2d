/* Group norm: groups of channels less their mean, divided by their standard deviation. See
   docs/operators/group_norm.md.

   Written by `python -m tools.generate` from the operator's table; do not edit. */
#ifndef DESCEND_ACLNNOP_ACLNN_GROUP_NORM_H_
#define DESCEND_ACLNNOP_ACLNN_GROUP_NORM_H_

#include "../aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnGroupNormGetWorkspaceSize(const aclTensor* self, const aclTensor* gamma,
                                                               const aclTensor* beta, int64_t N, int64_t C, int64_t HxW,
                                                               int64_t group, double eps, aclTensor* out,
                                                               aclTensor* meanOut, aclTensor* rstdOut,
                                                               uint64_t* workspaceSize, aclOpExecutor** executor);

ACL_FUNC_VISIBILITY aclnnStatus aclnnGroupNorm(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                               aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACLNNOP_ACLNN_GROUP_NORM_H_ */
