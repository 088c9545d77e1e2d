/* Gradients of the compression of native sparse attention with respect to its input and its weight. See
   docs/operators/nsa_compress_grad.md.

   Written by `python -m tools.generate` from the operator's table; do not edit. */
#ifndef DESCEND_ACLNNOP_ACLNN_NSA_COMPRESS_GRAD_H_
#define DESCEND_ACLNNOP_ACLNN_NSA_COMPRESS_GRAD_H_

#include "../aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnNsaCompressGradGetWorkspaceSize(
    const aclTensor* outputGrad, const aclTensor* input, const aclTensor* weight, const aclIntArray* actSeqLenOptional,
    int64_t compressBlockSize, int64_t compressStride, int64_t actSeqLenType, char* layoutOptional,
    const aclTensor* inputGrad, const aclTensor* weightGrad, uint64_t* workspaceSize, aclOpExecutor** executor);

ACL_FUNC_VISIBILITY aclnnStatus aclnnNsaCompressGrad(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                                     aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACLNNOP_ACLNN_NSA_COMPRESS_GRAD_H_ */
