// Written by `python -m tools.generate` from the operator's table; do not edit.
#include "aclnnop/aclnn_group_norm_swish_grad.h"

#include "capi/operator_call.h"
#include "operators/registry.h"

aclnnStatus aclnnGroupNormSwishGradGetWorkspaceSize(const aclTensor* dy, const aclTensor* mean, const aclTensor* rstd,
                                                    const aclTensor* x, const aclTensor* gamma, const aclTensor* beta,
                                                    int64_t numGroups, char* dataFormatOptional, double swishScale,
                                                    bool dgammaIsRequire, bool dbetaIsRequire, const aclTensor* dxOut,
                                                    const aclTensor* dgammaOut, const aclTensor* dbetaOut,
                                                    uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::get_workspace_size(descend::group_norm_swish_grad, workspaceSize, executor, dy, mean, rstd, x,
                                           gamma, beta, numGroups, dataFormatOptional, swishScale, dgammaIsRequire,
                                           dbetaIsRequire, dxOut, dgammaOut, dbetaOut);
}

aclnnStatus aclnnGroupNormSwishGrad(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                    aclrtStream stream) {
  return descend::capi::launch(descend::group_norm_swish_grad, workspace, workspaceSize, executor, stream);
}
