/* Gradient of GELU with respect to its input. See docs/operators/gelu_backward_v2.md.

   Written by `python -m tools.generate` from the operator's table; do not edit. */
#ifndef DESCEND_ACLNNOP_ACLNN_GELU_BACKWARD_V2_H_
#define DESCEND_ACLNNOP_ACLNN_GELU_BACKWARD_V2_H_

#include "../aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnGeluBackwardV2GetWorkspaceSize(const aclTensor* gradOutput, const aclTensor* self,
                                                                    char* approximate, aclTensor* gradInput,
                                                                    uint64_t* workspaceSize, aclOpExecutor** executor);

ACL_FUNC_VISIBILITY aclnnStatus aclnnGeluBackwardV2(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                                    aclrtStream stream);

/* The same with tanh. gradInput may have any of the dtypes; gradOutput also INT32. */
ACL_FUNC_VISIBILITY aclnnStatus aclnnGeluBackwardGetWorkspaceSize(const aclTensor* gradOutput, const aclTensor* self,
                                                                  const aclTensor* gradInput, uint64_t* workspaceSize,
                                                                  aclOpExecutor** executor);

ACL_FUNC_VISIBILITY aclnnStatus aclnnGeluBackward(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                                  aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACLNNOP_ACLNN_GELU_BACKWARD_V2_H_ */
