// Written by `python -m tools.generate` from the operator's table; do not edit.
#include "aclnnop/aclnn_nsa_compress_grad.h"

#include "capi/operator_call.h"
#include "operators/registry.h"

aclnnStatus aclnnNsaCompressGradGetWorkspaceSize(const aclTensor* outputGrad, const aclTensor* input,
                                                 const aclTensor* weight, const aclIntArray* actSeqLenOptional,
                                                 int64_t compressBlockSize, int64_t compressStride,
                                                 int64_t actSeqLenType, char* layoutOptional,
                                                 const aclTensor* inputGrad, const aclTensor* weightGrad,
                                                 uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(descend::nsa_compress_grad, workspaceSize, executor, outputGrad, input,
                                           weight, actSeqLenOptional, compressBlockSize, compressStride, actSeqLenType,
                                           layoutOptional, inputGrad, weightGrad);
}

aclnnStatus aclnnNsaCompressGrad(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch(descend::nsa_compress_grad, workspace, workspaceSize, executor, stream);
}
