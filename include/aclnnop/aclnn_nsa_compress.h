/* Compression of native sparse attention; see docs/operators/nsa_compress.md. */
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
