/* RMS norm as Gemma has it: each row divided by its root mean square, times a weight plus 1. See
   docs/operators/gemma_rms_norm.md.

   Written by `python -m tools.generate` from the operator's table; do not edit. */
#ifndef DESCEND_ACLNNOP_ACLNN_GEMMA_RMS_NORM_H_
#define DESCEND_ACLNNOP_ACLNN_GEMMA_RMS_NORM_H_

#include "../aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnGemmaRmsNormGetWorkspaceSize(const aclTensor* x, const aclTensor* gamma,
                                                                  double epsilon, const aclTensor* yOut,
                                                                  const aclTensor* rstdOut, uint64_t* workspaceSize,
                                                                  aclOpExecutor** executor);

ACL_FUNC_VISIBILITY aclnnStatus aclnnGemmaRmsNorm(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                                  aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACLNNOP_ACLNN_GEMMA_RMS_NORM_H_ */
