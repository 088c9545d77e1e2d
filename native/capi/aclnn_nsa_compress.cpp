// Written by `python -m tools.generate` from the operator's table; do not edit.
#include "aclnnop/aclnn_nsa_compress.h"

#include "capi/operator_call.h"
#include "operators/registry.h"

aclnnStatus aclnnNsaCompressGetWorkspaceSize(const aclTensor* input, const aclTensor* weight,
                                             const aclIntArray* actSeqLenOptional, char* layoutOptional,
                                             int64_t compressBlockSize, int64_t compressStride, int64_t actSeqLenType,
                                             aclTensor* output, uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(descend::nsa_compress, workspaceSize, executor, input, weight,
                                           actSeqLenOptional, layoutOptional, compressBlockSize, compressStride,
                                           actSeqLenType, output);
}

aclnnStatus aclnnNsaCompress(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch(descend::nsa_compress, workspace, workspaceSize, executor, stream);
}
