/* Group norm, then SiLU. See docs/operators/group_norm_silu.md.

   Written by `python -m tools.generate` from the operator's table; do not edit. */
#ifndef DESCEND_ACLNNOP_ACLNN_GROUP_NORM_SILU_H_
#define DESCEND_ACLNNOP_ACLNN_GROUP_NORM_SILU_H_

#include "../aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnGroupNormSiluGetWorkspaceSize(const aclTensor* self, const aclTensor* gamma,
                                                                   const aclTensor* beta, int64_t group, double eps,
                                                                   aclTensor* out, aclTensor* meanOut,
                                                                   aclTensor* rstdOut, uint64_t* workspaceSize,
                                                                   aclOpExecutor** executor);

ACL_FUNC_VISIBILITY aclnnStatus aclnnGroupNormSilu(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                                   aclrtStream stream);

/* The same, with SiLU or, where activateSilu is false, without. */
ACL_FUNC_VISIBILITY aclnnStatus aclnnGroupNormSiluV2GetWorkspaceSize(const aclTensor* self, const aclTensor* gamma,
                                                                     const aclTensor* beta, int64_t group, double eps,
                                                                     bool activateSilu, aclTensor* out,
                                                                     aclTensor* meanOut, aclTensor* rstdOut,
                                                                     uint64_t* workspaceSize, aclOpExecutor** executor);

ACL_FUNC_VISIBILITY aclnnStatus aclnnGroupNormSiluV2(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                                     aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACLNNOP_ACLNN_GROUP_NORM_SILU_H_ */
