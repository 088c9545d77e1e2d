/* PyTorch computes these functions, under torch_npu. See docs/npu-operators.md.

   Written by `python -m tools.generate` from the operator's table; do not edit. */
#ifndef DESCEND_ACLNNOP_ACLNN_GROUPED_MATMUL_H_
#define DESCEND_ACLNNOP_ACLNN_GROUPED_MATMUL_H_

#include "../aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnGroupedMatmulGetWorkspaceSize(
    const aclTensorList* x, const aclTensorList* weight, const aclTensorList* biasOptional,
    const aclTensorList* scaleOptional, const aclTensorList* offsetOptional,
    const aclTensorList* antiquantScaleOptional, const aclTensorList* antiquantOffsetOptional,
    const aclIntArray* groupListOptional, int64_t splitItem, const aclTensorList* y, uint64_t* workspaceSize,
    aclOpExecutor** executor);

ACL_FUNC_VISIBILITY aclnnStatus aclnnGroupedMatmul(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                                   aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACLNNOP_ACLNN_GROUPED_MATMUL_H_ */
