/* Group norm, then swish: z * sigmoid(swish_scale * z). See docs/operators/group_norm_swish.md.

   Written by `python -m tools.generate` from the operator's table; do not edit. */
#ifndef DESCEND_ACLNNOP_ACLNN_GROUP_NORM_SWISH_H_
#define DESCEND_ACLNNOP_ACLNN_GROUP_NORM_SWISH_H_

#include "../aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnGroupNormSwishGetWorkspaceSize(
    const aclTensor* x, const aclTensor* gamma, const aclTensor* beta, int64_t numGroups, char* dataFormatOptional,
    double eps, bool activateSwish, double swishScale, const aclTensor* yOut, const aclTensor* meanOut,
    const aclTensor* rstdOut, uint64_t* workspaceSize, aclOpExecutor** executor);

ACL_FUNC_VISIBILITY aclnnStatus aclnnGroupNormSwish(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                                    aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACLNNOP_ACLNN_GROUP_NORM_SWISH_H_ */
