// Written by `python -m tools.generate` from the operator's table; do not edit.
// The functions of src/descend/_npu_aclnn.py.
#include "aclnnop/aclnn_apply_fused_ema_adam.h"
#include "aclnnop/aclnn_flash_attention_score.h"
#include "aclnnop/aclnn_flash_attention_score_grad.h"
#include "aclnnop/aclnn_grouped_matmul.h"
#include "aclnnop/aclnn_grouped_matmul_v2.h"
#include "aclnnop/aclnn_grouped_matmul_v3.h"
#include "aclnnop/aclnn_grouped_matmul_v4.h"
#include "aclnnop/aclnn_grouped_matmul_v5.h"
#include "aclnnop/aclnn_moe_token_permute.h"
#include "aclnnop/aclnn_moe_token_permute_grad.h"
#include "aclnnop/aclnn_moe_token_unpermute.h"
#include "aclnnop/aclnn_moe_token_unpermute_grad.h"
#include "aclnnop/aclnn_ring_attention_update.h"
#include "aclnnop/aclnn_silent_check.h"
#include "capi/composed.h"

aclnnStatus aclnnGroupedMatmulGetWorkspaceSize(const aclTensorList* x, const aclTensorList* weight,
                                               const aclTensorList* biasOptional, const aclTensorList* scaleOptional,
                                               const aclTensorList* offsetOptional,
                                               const aclTensorList* antiquantScaleOptional,
                                               const aclTensorList* antiquantOffsetOptional,
                                               const aclIntArray* groupListOptional, int64_t splitItem,
                                               const aclTensorList* y, uint64_t* workspaceSize,
                                               aclOpExecutor** executor) {
  return descend::capi::plan_composed("aclnnGroupedMatmul", workspaceSize, executor, x, weight, biasOptional,
                                      scaleOptional, offsetOptional, antiquantScaleOptional, antiquantOffsetOptional,
                                      groupListOptional, splitItem, y);
}

aclnnStatus aclnnGroupedMatmul(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch_composed("aclnnGroupedMatmul", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnGroupedMatmulV2GetWorkspaceSize(const aclTensorList* x, const aclTensorList* weight,
                                                 const aclTensorList* biasOptional, const aclTensorList* scaleOptional,
                                                 const aclTensorList* offsetOptional,
                                                 const aclTensorList* antiquantScaleOptional,
                                                 const aclTensorList* antiquantOffsetOptional,
                                                 const aclIntArray* groupListOptional, int64_t splitItem,
                                                 int64_t groupType, const aclTensorList* y, uint64_t* workspaceSize,
                                                 aclOpExecutor** executor) {
  return descend::capi::plan_composed("aclnnGroupedMatmulV2", workspaceSize, executor, x, weight, biasOptional,
                                      scaleOptional, offsetOptional, antiquantScaleOptional, antiquantOffsetOptional,
                                      groupListOptional, splitItem, groupType, y);
}

aclnnStatus aclnnGroupedMatmulV2(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch_composed("aclnnGroupedMatmulV2", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnGroupedMatmulV3GetWorkspaceSize(const aclTensorList* x, const aclTensorList* weight,
                                                 const aclTensorList* biasOptional, const aclTensorList* scaleOptional,
                                                 const aclTensorList* offsetOptional,
                                                 const aclTensorList* antiquantScaleOptional,
                                                 const aclTensorList* antiquantOffsetOptional,
                                                 const aclTensor* groupListOptional, int64_t splitItem,
                                                 int64_t groupType, const aclTensorList* y, uint64_t* workspaceSize,
                                                 aclOpExecutor** executor) {
  return descend::capi::plan_composed("aclnnGroupedMatmulV3", workspaceSize, executor, x, weight, biasOptional,
                                      scaleOptional, offsetOptional, antiquantScaleOptional, antiquantOffsetOptional,
                                      groupListOptional, splitItem, groupType, y);
}

aclnnStatus aclnnGroupedMatmulV3(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch_composed("aclnnGroupedMatmulV3", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnGroupedMatmulV4GetWorkspaceSize(
    const aclTensorList* x, const aclTensorList* weight, const aclTensorList* biasOptional,
    const aclTensorList* scaleOptional, const aclTensorList* offsetOptional,
    const aclTensorList* antiquantScaleOptional, const aclTensorList* antiquantOffsetOptional,
    const aclTensorList* perTokenScaleOptional, const aclTensor* groupListOptional,
    const aclTensorList* activationInputOptional, const aclTensorList* activationQuantScaleOptional,
    const aclTensorList* activationQuantOffsetOptional, int64_t splitItem, int64_t groupType, int64_t groupListType,
    int64_t actType, const aclTensorList* out, const aclTensorList* activationFeatureOutOptional,
    const aclTensorList* dynQuantScaleOutOptional, uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::plan_composed(
      "aclnnGroupedMatmulV4", workspaceSize, executor, x, weight, biasOptional, scaleOptional, offsetOptional,
      antiquantScaleOptional, antiquantOffsetOptional, perTokenScaleOptional, groupListOptional,
      activationInputOptional, activationQuantScaleOptional, activationQuantOffsetOptional, splitItem, groupType,
      groupListType, actType, out, activationFeatureOutOptional, dynQuantScaleOutOptional);
}

aclnnStatus aclnnGroupedMatmulV4(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch_composed("aclnnGroupedMatmulV4", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnGroupedMatmulV5GetWorkspaceSize(
    const aclTensorList* x, const aclTensorList* weight, const aclTensorList* biasOptional,
    const aclTensorList* scaleOptional, const aclTensorList* offsetOptional,
    const aclTensorList* antiquantScaleOptional, const aclTensorList* antiquantOffsetOptional,
    const aclTensorList* perTokenScaleOptional, const aclTensor* groupListOptional,
    const aclTensorList* activationInputOptional, const aclTensorList* activationQuantScaleOptional,
    const aclTensorList* activationQuantOffsetOptional, int64_t splitItem, int64_t groupType, int64_t groupListType,
    int64_t actType, const aclIntArray* tuningConfigOptional, const aclTensorList* out,
    const aclTensorList* activationFeatureOutOptional, const aclTensorList* dynQuantScaleOutOptional,
    uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::plan_composed(
      "aclnnGroupedMatmulV5", workspaceSize, executor, x, weight, biasOptional, scaleOptional, offsetOptional,
      antiquantScaleOptional, antiquantOffsetOptional, perTokenScaleOptional, groupListOptional,
      activationInputOptional, activationQuantScaleOptional, activationQuantOffsetOptional, splitItem, groupType,
      groupListType, actType, tuningConfigOptional, out, activationFeatureOutOptional, dynQuantScaleOutOptional);
}

aclnnStatus aclnnGroupedMatmulV5(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch_composed("aclnnGroupedMatmulV5", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnMoeTokenPermuteGetWorkspaceSize(const aclTensor* tokens, const aclTensor* indices,
                                                 int64_t numOutTokens, bool paddedMode,
                                                 const aclTensor* permuteTokensOut, const aclTensor* sortedIndicesOut,
                                                 uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::plan_composed("aclnnMoeTokenPermute", workspaceSize, executor, tokens, indices, numOutTokens,
                                      paddedMode, permuteTokensOut, sortedIndicesOut);
}

aclnnStatus aclnnMoeTokenPermute(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch_composed("aclnnMoeTokenPermute", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnMoeTokenPermuteGradGetWorkspaceSize(const aclTensor* permutedOutputGrad,
                                                     const aclTensor* sortedIndices, int64_t numTopk, bool paddedMode,
                                                     const aclTensor* out, uint64_t* workspaceSize,
                                                     aclOpExecutor** executor) {
  return descend::capi::plan_composed("aclnnMoeTokenPermuteGrad", workspaceSize, executor, permutedOutputGrad,
                                      sortedIndices, numTopk, paddedMode, out);
}

aclnnStatus aclnnMoeTokenPermuteGrad(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                     aclrtStream stream) {
  return descend::capi::launch_composed("aclnnMoeTokenPermuteGrad", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnMoeTokenUnpermuteGetWorkspaceSize(const aclTensor* permutedTokens, const aclTensor* sortedIndices,
                                                   const aclTensor* probsOptional, bool paddedMode,
                                                   const aclIntArray* restoreShapeOptional, const aclTensor* out,
                                                   uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::plan_composed("aclnnMoeTokenUnpermute", workspaceSize, executor, permutedTokens, sortedIndices,
                                      probsOptional, paddedMode, restoreShapeOptional, out);
}

aclnnStatus aclnnMoeTokenUnpermute(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                   aclrtStream stream) {
  return descend::capi::launch_composed("aclnnMoeTokenUnpermute", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnMoeTokenUnpermuteGradGetWorkspaceSize(const aclTensor* permuteTokens,
                                                       const aclTensor* unpermutedTokensGrad,
                                                       const aclTensor* sortedIndices, const aclTensor* probsOptional,
                                                       bool paddedMode, const aclIntArray* restoreShapeOptional,
                                                       const aclTensor* permutedTokensGradOut,
                                                       const aclTensor* probsGradOut, uint64_t* workspaceSize,
                                                       aclOpExecutor** executor) {
  return descend::capi::plan_composed("aclnnMoeTokenUnpermuteGrad", workspaceSize, executor, permuteTokens,
                                      unpermutedTokensGrad, sortedIndices, probsOptional, paddedMode,
                                      restoreShapeOptional, permutedTokensGradOut, probsGradOut);
}

aclnnStatus aclnnMoeTokenUnpermuteGrad(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                       aclrtStream stream) {
  return descend::capi::launch_composed("aclnnMoeTokenUnpermuteGrad", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnRingAttentionUpdateGetWorkspaceSize(const aclTensor* prevAttnOut, const aclTensor* prevSoftmaxMax,
                                                     const aclTensor* prevSoftmaxSum, const aclTensor* curAttnOut,
                                                     const aclTensor* curSoftmaxMax, const aclTensor* curSoftmaxSum,
                                                     const aclTensor* actualSeqQlenOptional, char* inputLayout,
                                                     const aclTensor* attnOut, const aclTensor* softmaxMax,
                                                     const aclTensor* softmaxSum, uint64_t* workspaceSize,
                                                     aclOpExecutor** executor) {
  return descend::capi::plan_composed("aclnnRingAttentionUpdate", workspaceSize, executor, prevAttnOut, prevSoftmaxMax,
                                      prevSoftmaxSum, curAttnOut, curSoftmaxMax, curSoftmaxSum, actualSeqQlenOptional,
                                      inputLayout, attnOut, softmaxMax, softmaxSum);
}

aclnnStatus aclnnRingAttentionUpdate(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                     aclrtStream stream) {
  return descend::capi::launch_composed("aclnnRingAttentionUpdate", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnFlashAttentionScoreGetWorkspaceSize(
    const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* realShiftOptional,
    const aclTensor* dropMaskOptional, const aclTensor* paddingMaskOptional, const aclTensor* attenMaskOptional,
    const aclIntArray* prefixOptional, double scaleValue, double keepProb, int64_t preTokens, int64_t nextTokens,
    int64_t headNum, char* inputLayout, int64_t innerPrecise, int64_t sparseMode, const aclTensor* softmaxMaxOut,
    const aclTensor* softmaxSumOut, const aclTensor* softmaxOutOut, const aclTensor* attentionOutOut,
    uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::plan_composed(
      "aclnnFlashAttentionScore", workspaceSize, executor, query, key, value, realShiftOptional, dropMaskOptional,
      paddingMaskOptional, attenMaskOptional, prefixOptional, scaleValue, keepProb, preTokens, nextTokens, headNum,
      inputLayout, innerPrecise, sparseMode, softmaxMaxOut, softmaxSumOut, softmaxOutOut, attentionOutOut);
}

aclnnStatus aclnnFlashAttentionScore(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                     aclrtStream stream) {
  return descend::capi::launch_composed("aclnnFlashAttentionScore", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnFlashAttentionScoreV2GetWorkspaceSize(
    const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* realShiftOptional,
    const aclTensor* dropMaskOptional, const aclTensor* paddingMaskOptional, const aclTensor* attenMaskOptional,
    const aclIntArray* prefixOptional, const aclIntArray* qStartIdxOptional, const aclIntArray* kvStartIdxOptional,
    double scaleValue, double keepProb, int64_t preTokens, int64_t nextTokens, int64_t headNum, char* inputLayout,
    int64_t innerPrecise, int64_t sparseMode, int64_t pseType, const aclTensor* softmaxMaxOut,
    const aclTensor* softmaxSumOut, const aclTensor* softmaxOutOut, const aclTensor* attentionOutOut,
    uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::plan_composed("aclnnFlashAttentionScoreV2", workspaceSize, executor, query, key, value,
                                      realShiftOptional, dropMaskOptional, paddingMaskOptional, attenMaskOptional,
                                      prefixOptional, qStartIdxOptional, kvStartIdxOptional, scaleValue, keepProb,
                                      preTokens, nextTokens, headNum, inputLayout, innerPrecise, sparseMode, pseType,
                                      softmaxMaxOut, softmaxSumOut, softmaxOutOut, attentionOutOut);
}

aclnnStatus aclnnFlashAttentionScoreV2(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                       aclrtStream stream) {
  return descend::capi::launch_composed("aclnnFlashAttentionScoreV2", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnFlashAttentionVarLenScoreGetWorkspaceSize(
    const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* realShiftOptional,
    const aclTensor* dropMaskOptional, const aclTensor* paddingMaskOptional, const aclTensor* attenMaskOptional,
    const aclIntArray* prefixOptional, const aclIntArray* actualSeqQLenOptional,
    const aclIntArray* actualSeqKvLenOptional, double scaleValue, double keepProb, int64_t preTokens,
    int64_t nextTokens, int64_t headNum, char* inputLayout, int64_t innerPrecise, int64_t sparseMode,
    const aclTensor* softmaxMaxOut, const aclTensor* softmaxSumOut, const aclTensor* softmaxOutOut,
    const aclTensor* attentionOutOut, uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::plan_composed("aclnnFlashAttentionVarLenScore", workspaceSize, executor, query, key, value,
                                      realShiftOptional, dropMaskOptional, paddingMaskOptional, attenMaskOptional,
                                      prefixOptional, actualSeqQLenOptional, actualSeqKvLenOptional, scaleValue,
                                      keepProb, preTokens, nextTokens, headNum, inputLayout, innerPrecise, sparseMode,
                                      softmaxMaxOut, softmaxSumOut, softmaxOutOut, attentionOutOut);
}

aclnnStatus aclnnFlashAttentionVarLenScore(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                           aclrtStream stream) {
  return descend::capi::launch_composed("aclnnFlashAttentionVarLenScore", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnFlashAttentionVarLenScoreV2GetWorkspaceSize(
    const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* realShiftOptional,
    const aclTensor* dropMaskOptional, const aclTensor* paddingMaskOptional, const aclTensor* attenMaskOptional,
    const aclIntArray* prefixOptional, const aclIntArray* actualSeqQLenOptional,
    const aclIntArray* actualSeqKvLenOptional, const aclIntArray* qStartIdxOptional,
    const aclIntArray* kvStartIdxOptional, double scaleValue, double keepProb, int64_t preTokens, int64_t nextTokens,
    int64_t headNum, char* inputLayout, int64_t innerPrecise, int64_t sparseMode, int64_t pseType,
    const aclTensor* softmaxMaxOut, const aclTensor* softmaxSumOut, const aclTensor* softmaxOutOut,
    const aclTensor* attentionOutOut, uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::plan_composed("aclnnFlashAttentionVarLenScoreV2", workspaceSize, executor, query, key, value,
                                      realShiftOptional, dropMaskOptional, paddingMaskOptional, attenMaskOptional,
                                      prefixOptional, actualSeqQLenOptional, actualSeqKvLenOptional, qStartIdxOptional,
                                      kvStartIdxOptional, scaleValue, keepProb, preTokens, nextTokens, headNum,
                                      inputLayout, innerPrecise, sparseMode, pseType, softmaxMaxOut, softmaxSumOut,
                                      softmaxOutOut, attentionOutOut);
}

aclnnStatus aclnnFlashAttentionVarLenScoreV2(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                             aclrtStream stream) {
  return descend::capi::launch_composed("aclnnFlashAttentionVarLenScoreV2", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnFlashAttentionVarLenScoreV3GetWorkspaceSize(
    const aclTensor* query, const aclTensor* queryRope, const aclTensor* key, const aclTensor* keyRope,
    const aclTensor* value, const aclTensor* realShiftOptional, const aclTensor* dropMaskOptional,
    const aclTensor* paddingMaskOptional, const aclTensor* attenMaskOptional, const aclIntArray* prefixOptional,
    const aclIntArray* actualSeqQLenOptional, const aclIntArray* actualSeqKvLenOptional,
    const aclIntArray* qStartIdxOptional, const aclIntArray* kvStartIdxOptional, double scaleValue, double keepProb,
    int64_t preTokens, int64_t nextTokens, int64_t headNum, char* inputLayout, int64_t innerPrecise, int64_t sparseMode,
    int64_t pseType, const aclTensor* softmaxMaxOut, const aclTensor* softmaxSumOut, const aclTensor* softmaxOutOut,
    const aclTensor* attentionOutOut, uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::plan_composed("aclnnFlashAttentionVarLenScoreV3", workspaceSize, executor, query, queryRope,
                                      key, keyRope, value, realShiftOptional, dropMaskOptional, paddingMaskOptional,
                                      attenMaskOptional, prefixOptional, actualSeqQLenOptional, actualSeqKvLenOptional,
                                      qStartIdxOptional, kvStartIdxOptional, scaleValue, keepProb, preTokens,
                                      nextTokens, headNum, inputLayout, innerPrecise, sparseMode, pseType,
                                      softmaxMaxOut, softmaxSumOut, softmaxOutOut, attentionOutOut);
}

aclnnStatus aclnnFlashAttentionVarLenScoreV3(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                             aclrtStream stream) {
  return descend::capi::launch_composed("aclnnFlashAttentionVarLenScoreV3", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnFlashAttentionVarLenScoreV4GetWorkspaceSize(
    const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* realShiftOptional,
    const aclTensor* dropMaskOptional, const aclTensor* paddingMaskOptional, const aclTensor* attenMaskOptional,
    const aclIntArray* prefixOptional, const aclIntArray* actualSeqQLenOptional,
    const aclIntArray* actualSeqKvLenOptional, double scaleValue, double keepProb, int64_t preTokens,
    int64_t nextTokens, int64_t headNum, char* inputLayout, int64_t innerPrecise, int64_t sparseMode,
    char* softmaxOutLayout, const aclTensor* softmaxMaxOut, const aclTensor* softmaxSumOut,
    const aclTensor* softmaxOutOut, const aclTensor* attentionOutOut, uint64_t* workspaceSize,
    aclOpExecutor** executor) {
  return descend::capi::plan_composed("aclnnFlashAttentionVarLenScoreV4", workspaceSize, executor, query, key, value,
                                      realShiftOptional, dropMaskOptional, paddingMaskOptional, attenMaskOptional,
                                      prefixOptional, actualSeqQLenOptional, actualSeqKvLenOptional, scaleValue,
                                      keepProb, preTokens, nextTokens, headNum, inputLayout, innerPrecise, sparseMode,
                                      softmaxOutLayout, softmaxMaxOut, softmaxSumOut, softmaxOutOut, attentionOutOut);
}

aclnnStatus aclnnFlashAttentionVarLenScoreV4(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                             aclrtStream stream) {
  return descend::capi::launch_composed("aclnnFlashAttentionVarLenScoreV4", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnFlashAttentionScoreGradGetWorkspaceSize(
    const aclTensor* query, const aclTensor* keyIn, const aclTensor* value, const aclTensor* dy,
    const aclTensor* pseShiftOptional, const aclTensor* dropMaskOptional, const aclTensor* paddingMaskOptional,
    const aclTensor* attenMaskOptional, const aclTensor* softmaxMaxOptional, const aclTensor* softmaxSumOptional,
    const aclTensor* softmaxInOptional, const aclTensor* attentionInOptional, const aclIntArray* prefixOptional,
    double scaleValue, double keepProb, int64_t preTokens, int64_t nextTokens, int64_t headNum, char* inputLayout,
    int64_t innerPrecise, int64_t sparseMode, const aclTensor* dqOut, const aclTensor* dkOut, const aclTensor* dvOut,
    const aclTensor* dpseOut, uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::plan_composed("aclnnFlashAttentionScoreGrad", workspaceSize, executor, query, keyIn, value, dy,
                                      pseShiftOptional, dropMaskOptional, paddingMaskOptional, attenMaskOptional,
                                      softmaxMaxOptional, softmaxSumOptional, softmaxInOptional, attentionInOptional,
                                      prefixOptional, scaleValue, keepProb, preTokens, nextTokens, headNum, inputLayout,
                                      innerPrecise, sparseMode, dqOut, dkOut, dvOut, dpseOut);
}

aclnnStatus aclnnFlashAttentionScoreGrad(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                         aclrtStream stream) {
  return descend::capi::launch_composed("aclnnFlashAttentionScoreGrad", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnFlashAttentionScoreGradV2GetWorkspaceSize(
    const aclTensor* query, const aclTensor* keyIn, const aclTensor* value, const aclTensor* dy,
    const aclTensor* pseShiftOptional, const aclTensor* dropMaskOptional, const aclTensor* paddingMaskOptional,
    const aclTensor* attenMaskOptional, const aclTensor* softmaxMaxOptional, const aclTensor* softmaxSumOptional,
    const aclTensor* softmaxInOptional, const aclTensor* attentionInOptional, const aclIntArray* prefixOptional,
    const aclIntArray* qStartIdxOptional, const aclIntArray* kvStartIdxOptional, double scaleValue, double keepProb,
    int64_t preTokens, int64_t nextTokens, int64_t headNum, char* inputLayout, int64_t innerPrecise, int64_t sparseMode,
    int64_t pseType, const aclTensor* dqOut, const aclTensor* dkOut, const aclTensor* dvOut, const aclTensor* dpseOut,
    uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::plan_composed("aclnnFlashAttentionScoreGradV2", workspaceSize, executor, query, keyIn, value,
                                      dy, pseShiftOptional, dropMaskOptional, paddingMaskOptional, attenMaskOptional,
                                      softmaxMaxOptional, softmaxSumOptional, softmaxInOptional, attentionInOptional,
                                      prefixOptional, qStartIdxOptional, kvStartIdxOptional, scaleValue, keepProb,
                                      preTokens, nextTokens, headNum, inputLayout, innerPrecise, sparseMode, pseType,
                                      dqOut, dkOut, dvOut, dpseOut);
}

aclnnStatus aclnnFlashAttentionScoreGradV2(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                           aclrtStream stream) {
  return descend::capi::launch_composed("aclnnFlashAttentionScoreGradV2", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnFlashAttentionUnpaddingScoreGradGetWorkspaceSize(
    const aclTensor* query, const aclTensor* keyIn, const aclTensor* value, const aclTensor* dy,
    const aclTensor* pseShiftOptional, const aclTensor* dropMaskOptional, const aclTensor* paddingMaskOptional,
    const aclTensor* attenMaskOptional, const aclTensor* softmaxMaxOptional, const aclTensor* softmaxSumOptional,
    const aclTensor* softmaxInOptional, const aclTensor* attentionInOptional, const aclIntArray* prefixOptional,
    const aclIntArray* actualSeqQLenOptional, const aclIntArray* actualSeqKvLenOptional, double scaleValue,
    double keepProb, int64_t preTokens, int64_t nextTokens, int64_t headNum, char* inputLayout, int64_t innerPrecise,
    int64_t sparseMode, const aclTensor* dqOut, const aclTensor* dkOut, const aclTensor* dvOut,
    const aclTensor* dpseOut, uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::plan_composed(
      "aclnnFlashAttentionUnpaddingScoreGrad", workspaceSize, executor, query, keyIn, value, dy, pseShiftOptional,
      dropMaskOptional, paddingMaskOptional, attenMaskOptional, softmaxMaxOptional, softmaxSumOptional,
      softmaxInOptional, attentionInOptional, prefixOptional, actualSeqQLenOptional, actualSeqKvLenOptional, scaleValue,
      keepProb, preTokens, nextTokens, headNum, inputLayout, innerPrecise, sparseMode, dqOut, dkOut, dvOut, dpseOut);
}

aclnnStatus aclnnFlashAttentionUnpaddingScoreGrad(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                                  aclrtStream stream) {
  return descend::capi::launch_composed("aclnnFlashAttentionUnpaddingScoreGrad", workspace, workspaceSize, executor,
                                        stream);
}

aclnnStatus aclnnFlashAttentionUnpaddingScoreGradV2GetWorkspaceSize(
    const aclTensor* query, const aclTensor* keyIn, const aclTensor* value, const aclTensor* dy,
    const aclTensor* pseShiftOptional, const aclTensor* dropMaskOptional, const aclTensor* paddingMaskOptional,
    const aclTensor* attenMaskOptional, const aclTensor* softmaxMaxOptional, const aclTensor* softmaxSumOptional,
    const aclTensor* softmaxInOptional, const aclTensor* attentionInOptional, const aclIntArray* prefixOptional,
    const aclIntArray* actualSeqQLenOptional, const aclIntArray* actualSeqKvLenOptional,
    const aclIntArray* qStartIdxOptional, const aclIntArray* kvStartIdxOptional, double scaleValue, double keepProb,
    int64_t preTokens, int64_t nextTokens, int64_t headNum, char* inputLayout, int64_t innerPrecise, int64_t sparseMode,
    int64_t pseType, const aclTensor* dqOut, const aclTensor* dkOut, const aclTensor* dvOut, const aclTensor* dpseOut,
    uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::plan_composed(
      "aclnnFlashAttentionUnpaddingScoreGradV2", workspaceSize, executor, query, keyIn, value, dy, pseShiftOptional,
      dropMaskOptional, paddingMaskOptional, attenMaskOptional, softmaxMaxOptional, softmaxSumOptional,
      softmaxInOptional, attentionInOptional, prefixOptional, actualSeqQLenOptional, actualSeqKvLenOptional,
      qStartIdxOptional, kvStartIdxOptional, scaleValue, keepProb, preTokens, nextTokens, headNum, inputLayout,
      innerPrecise, sparseMode, pseType, dqOut, dkOut, dvOut, dpseOut);
}

aclnnStatus aclnnFlashAttentionUnpaddingScoreGradV2(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                                    aclrtStream stream) {
  return descend::capi::launch_composed("aclnnFlashAttentionUnpaddingScoreGradV2", workspace, workspaceSize, executor,
                                        stream);
}

aclnnStatus aclnnFlashAttentionUnpaddingScoreGradV3GetWorkspaceSize(
    const aclTensor* query, const aclTensor* queryRope, const aclTensor* keyIn, const aclTensor* keyInRope,
    const aclTensor* value, const aclTensor* dy, const aclTensor* pseShiftOptional, const aclTensor* dropMaskOptional,
    const aclTensor* paddingMaskOptional, const aclTensor* attenMaskOptional, const aclTensor* softmaxMaxOptional,
    const aclTensor* softmaxSumOptional, const aclTensor* softmaxInOptional, const aclTensor* attentionInOptional,
    const aclIntArray* prefixOptional, const aclIntArray* actualSeqQLenOptional,
    const aclIntArray* actualSeqKvLenOptional, const aclIntArray* qStartIdxOptional,
    const aclIntArray* kvStartIdxOptional, double scaleValue, double keepProb, int64_t preTokens, int64_t nextTokens,
    int64_t headNum, char* inputLayout, int64_t innerPrecise, int64_t sparseMode, int64_t pseType,
    const aclTensor* dqOut, const aclTensor* dqRopeOut, const aclTensor* dkOut, const aclTensor* dkRopeOut,
    const aclTensor* dvOut, const aclTensor* dpseOut, uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::plan_composed(
      "aclnnFlashAttentionUnpaddingScoreGradV3", workspaceSize, executor, query, queryRope, keyIn, keyInRope, value, dy,
      pseShiftOptional, dropMaskOptional, paddingMaskOptional, attenMaskOptional, softmaxMaxOptional,
      softmaxSumOptional, softmaxInOptional, attentionInOptional, prefixOptional, actualSeqQLenOptional,
      actualSeqKvLenOptional, qStartIdxOptional, kvStartIdxOptional, scaleValue, keepProb, preTokens, nextTokens,
      headNum, inputLayout, innerPrecise, sparseMode, pseType, dqOut, dqRopeOut, dkOut, dkRopeOut, dvOut, dpseOut);
}

aclnnStatus aclnnFlashAttentionUnpaddingScoreGradV3(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                                    aclrtStream stream) {
  return descend::capi::launch_composed("aclnnFlashAttentionUnpaddingScoreGradV3", workspace, workspaceSize, executor,
                                        stream);
}

aclnnStatus aclnnFlashAttentionUnpaddingScoreGradV4GetWorkspaceSize(
    const aclTensor* query, const aclTensor* keyIn, const aclTensor* value, const aclTensor* dy,
    const aclTensor* pseShiftOptional, const aclTensor* dropMaskOptional, const aclTensor* paddingMaskOptional,
    const aclTensor* attenMaskOptional, const aclTensor* softmaxMaxOptional, const aclTensor* softmaxSumOptional,
    const aclTensor* softmaxInOptional, const aclTensor* attentionInOptional, const aclIntArray* prefixOptional,
    const aclIntArray* actualSeqQLenOptional, const aclIntArray* actualSeqKvLenOptional, double scaleValue,
    double keepProb, int64_t preTokens, int64_t nextTokens, int64_t headNum, char* inputLayout, int64_t innerPrecise,
    int64_t sparseMode, const aclTensor* dqOut, const aclTensor* dkOut, const aclTensor* dvOut,
    const aclTensor* dpseOut, char* softmaxInLayout, uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::plan_composed(
      "aclnnFlashAttentionUnpaddingScoreGradV4", workspaceSize, executor, query, keyIn, value, dy, pseShiftOptional,
      dropMaskOptional, paddingMaskOptional, attenMaskOptional, softmaxMaxOptional, softmaxSumOptional,
      softmaxInOptional, attentionInOptional, prefixOptional, actualSeqQLenOptional, actualSeqKvLenOptional, scaleValue,
      keepProb, preTokens, nextTokens, headNum, inputLayout, innerPrecise, sparseMode, dqOut, dkOut, dvOut, dpseOut,
      softmaxInLayout);
}

aclnnStatus aclnnFlashAttentionUnpaddingScoreGradV4(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                                    aclrtStream stream) {
  return descend::capi::launch_composed("aclnnFlashAttentionUnpaddingScoreGradV4", workspace, workspaceSize, executor,
                                        stream);
}

aclnnStatus aclnnApplyFusedEmaAdamGetWorkspaceSize(const aclTensor* grad, const aclTensor* var, const aclTensor* m,
                                                   const aclTensor* v, const aclTensor* s, const aclTensor* step,
                                                   double lr, double emaDecay, double beta1, double beta2, double eps,
                                                   int64_t mode, bool biasCorrection, double weightDecay,
                                                   uint64_t* workspaceSize, aclOpExecutor** executor) {
  return descend::capi::plan_composed("aclnnApplyFusedEmaAdam", workspaceSize, executor, grad, var, m, v, s, step, lr,
                                      emaDecay, beta1, beta2, eps, mode, biasCorrection, weightDecay);
}

aclnnStatus aclnnApplyFusedEmaAdam(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                   aclrtStream stream) {
  return descend::capi::launch_composed("aclnnApplyFusedEmaAdam", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnSilentCheckGetWorkspaceSize(const aclTensor* val, const aclTensor* inputGradRef,
                                             const aclTensor* sfdaRef, const aclTensor* stepRef, int32_t cMinSteps,
                                             float cThreshL1, float cCoeffL1, float cThreshL2, float cCoeffL2,
                                             int32_t npuAsdDetect, const aclTensor* result, uint64_t* workspaceSize,
                                             aclOpExecutor** executor) {
  return descend::capi::plan_composed("aclnnSilentCheck", workspaceSize, executor, val, inputGradRef, sfdaRef, stepRef,
                                      cMinSteps, cThreshL1, cCoeffL1, cThreshL2, cCoeffL2, npuAsdDetect, result);
}

aclnnStatus aclnnSilentCheck(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return descend::capi::launch_composed("aclnnSilentCheck", workspace, workspaceSize, executor, stream);
}
