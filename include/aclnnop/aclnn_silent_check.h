/* PyTorch computes these functions, under torch_npu. See docs/npu-operators.md.

   Written by `python -m tools.generate` from the operator's table; do not edit. */
#ifndef DESCEND_ACLNNOP_ACLNN_SILENT_CHECK_H_
#define DESCEND_ACLNNOP_ACLNN_SILENT_CHECK_H_

#include "../aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnSilentCheckGetWorkspaceSize(const aclTensor* val, const aclTensor* inputGradRef,
                                                                 const aclTensor* sfdaRef, const aclTensor* stepRef,
                                                                 int32_t cMinSteps, float cThreshL1, float cCoeffL1,
                                                                 float cThreshL2, float cCoeffL2, int32_t npuAsdDetect,
                                                                 const aclTensor* result, uint64_t* workspaceSize,
                                                                 aclOpExecutor** executor);

ACL_FUNC_VISIBILITY aclnnStatus aclnnSilentCheck(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                                 aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACLNNOP_ACLNN_SILENT_CHECK_H_ */
