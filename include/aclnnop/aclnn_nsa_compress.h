/* The compression of native sparse attention: windows of tokens, each reduced to one by a learned weight. See
   docs/operators/nsa_compress.md.

   Written by `python -m tools.generate` from the operator's table; do not edit. */
#ifndef DESCEND_ACLNNOP_ACLNN_NSA_COMPRESS_H_
#define DESCEND_ACLNNOP_ACLNN_NSA_COMPRESS_H_

#include "../aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnNsaCompressGetWorkspaceSize(const aclTensor* input, const aclTensor* weight,
                                                                 const aclIntArray* actSeqLenOptional,
                                                                 char* layoutOptional, int64_t compressBlockSize,
                                                                 int64_t compressStride, int64_t actSeqLenType,
                                                                 aclTensor* output, uint64_t* workspaceSize,
                                                                 aclOpExecutor** executor);

ACL_FUNC_VISIBILITY aclnnStatus aclnnNsaCompress(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                                 aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACLNNOP_ACLNN_NSA_COMPRESS_H_ */
