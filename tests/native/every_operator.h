// Every operator with a small call of it, for tests of what holds for each of them.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aclnnop/aclnn_add_layer_norm.h"
#include "aclnnop/aclnn_add_layer_norm_grad.h"
#include "aclnnop/aclnn_add_rms_norm.h"
#include "aclnnop/aclnn_cross_entropy_loss.h"
#include "aclnnop/aclnn_cross_entropy_loss_grad.h"
#include "aclnnop/aclnn_deep_norm.h"
#include "aclnnop/aclnn_deep_norm_grad.h"
#include "aclnnop/aclnn_gelu_backward_v2.h"
#include "aclnnop/aclnn_gelu_v2.h"
#include "aclnnop/aclnn_gemma_rms_norm.h"
#include "aclnnop/aclnn_group_norm.h"
#include "aclnnop/aclnn_group_norm_backward.h"
#include "aclnnop/aclnn_group_norm_silu.h"
#include "aclnnop/aclnn_group_norm_swish.h"
#include "aclnnop/aclnn_group_norm_swish_grad.h"
#include "aclnnop/aclnn_layer_norm.h"
#include "aclnnop/aclnn_layer_norm_backward.h"
#include "aclnnop/aclnn_log_softmax.h"
#include "aclnnop/aclnn_log_softmax_backward.h"
#include "aclnnop/aclnn_nsa_compress.h"
#include "aclnnop/aclnn_nsa_compress_grad.h"
#include "aclnnop/aclnn_rms_norm.h"
#include "aclnnop/aclnn_rms_norm_grad.h"
#include "aclnnop/aclnn_rotary_position_embedding.h"
#include "aclnnop/aclnn_rotary_position_embedding_grad.h"
#include "aclnnop/aclnn_scaled_masked_softmax.h"
#include "aclnnop/aclnn_scaled_masked_softmax_backward.h"
#include "aclnnop/aclnn_softmax.h"
#include "aclnnop/aclnn_softmax_backward.h"
#include "aclnnop/aclnn_swi_glu.h"
#include "aclnnop/aclnn_swi_glu_grad.h"
#include "capi_runtime.h"

using Arrays = std::vector<std::unique_ptr<Array>>;

struct Operator {
  std::string name;
  std::function<int(uint64_t*, aclOpExecutor**)> first;
  SecondPhase second;
  Arrays inputs, outputs;
};

inline Arrays arrays(std::initializer_list<std::vector<int64_t>> shapes) {
  Arrays made;
  uint32_t seed = 1;
  for (const auto& shape : shapes) {
    made.push_back(std::make_unique<Array>(shape, ACL_FLOAT));
    made.back()->positive(seed++);
  }
  return made;
}

// All, on FLOAT. The lists of integers belong to the library, which ends with the test.
inline std::vector<Operator> operators() {
  static const int64_t columns = 32, block = 16, stride = 16, ends[] = {16, 48};
  static const bool all[] = {true, true, true};
  static char layout[] = "TND", format[] = "NCHW";
  aclIntArray* const normalized = aclCreateIntArray(&columns, 1);
  aclIntArray* const lengths = aclCreateIntArray(ends, 2);
  aclBoolArray* const wanted = aclCreateBoolArray(all, 3);
  const std::vector<int64_t> matrix{40, 32}, row{32}, column{40, 1}, image{2, 4, 3, 5}, groups{2, 2}, channel{4};
  const std::vector<int64_t> scores{2, 3, 8, 32}, tokens{48, 2, 16}, weight{16, 2}, windows{3, 2, 16};

  std::vector<Operator> made;
  const auto add = [&](const char* name, SecondPhase second, Arrays inputs, Arrays outputs, auto first) {
    made.push_back({name, nullptr, second, std::move(inputs), std::move(outputs)});
    made.back().first = [first, in = &made.back()](uint64_t* size, aclOpExecutor** executor) {
      return first(*in, size, executor);
    };
  };
  made.reserve(64);  // the calls hold addresses
#define IN(i) *op.inputs[i]
#define OUT(i) *op.outputs[i]
#define FIRST(function, ...)                                                 \
  [=](const Operator& op, uint64_t* size, aclOpExecutor** executor) -> int { \
    return function(__VA_ARGS__, size, executor);                            \
  }
  add("aclnnRmsNorm", aclnnRmsNorm, arrays({matrix, row}), arrays({matrix, column}),
      FIRST(aclnnRmsNormGetWorkspaceSize, IN(0), IN(1), 1e-6, OUT(0), OUT(1)));
  add("aclnnAddRmsNorm", aclnnAddRmsNorm, arrays({matrix, matrix, row}), arrays({matrix, column, matrix}),
      FIRST(aclnnAddRmsNormGetWorkspaceSize, IN(0), IN(1), IN(2), 1e-6, OUT(0), OUT(1), OUT(2)));
  add("aclnnGemmaRmsNorm", aclnnGemmaRmsNorm, arrays({matrix, row}), arrays({matrix, column}),
      FIRST(aclnnGemmaRmsNormGetWorkspaceSize, IN(0), IN(1), 1e-6, OUT(0), OUT(1)));
  add("aclnnRmsNormGrad", aclnnRmsNormGrad, arrays({matrix, matrix, column, row}), arrays({matrix, row}),
      FIRST(aclnnRmsNormGradGetWorkspaceSize, IN(0), IN(1), IN(2), IN(3), OUT(0), OUT(1)));
  add("aclnnLayerNorm", aclnnLayerNorm, arrays({matrix, row, row}), arrays({matrix, column, column}),
      FIRST(aclnnLayerNormGetWorkspaceSize, IN(0), normalized, IN(1), IN(2), 1e-5, OUT(0), OUT(1), OUT(2)));
  add("aclnnLayerNormBackward", aclnnLayerNormBackward, arrays({matrix, matrix, column, column, row, row}),
      arrays({matrix, row, row}),
      FIRST(aclnnLayerNormBackwardGetWorkspaceSize, IN(0), IN(1), normalized, IN(2), IN(3), IN(4), IN(5), wanted,
            OUT(0), OUT(1), OUT(2)));
  add("aclnnDeepNormGrad", aclnnDeepNormGrad, arrays({matrix, matrix, matrix, row, column, column}),
      arrays({matrix, matrix, row, row}),
      FIRST(aclnnDeepNormGradGetWorkspaceSize, IN(0), IN(1), IN(2), IN(3), IN(4), IN(5), 0.3, OUT(0), OUT(1), OUT(2),
            OUT(3)));
  add("aclnnDeepNorm", aclnnDeepNorm, arrays({matrix, matrix, row, row}), arrays({column, column, matrix}),
      FIRST(aclnnDeepNormGetWorkspaceSize, IN(0), IN(1), IN(2), IN(3), 0.3, 1e-6, OUT(0), OUT(1), OUT(2)));
  add("aclnnAddLayerNorm", aclnnAddLayerNorm, arrays({matrix, matrix, row, row, row}),
      arrays({matrix, column, column, matrix}),
      FIRST(aclnnAddLayerNormGetWorkspaceSize, IN(0), IN(1), IN(2), IN(3), IN(4), 1e-5, true, OUT(0), OUT(1), OUT(2),
            OUT(3)));
  add("aclnnAddLayerNormGrad", aclnnAddLayerNormGrad, arrays({matrix, matrix, matrix, column, column, row, matrix}),
      arrays({matrix, row, row}),
      FIRST(aclnnAddLayerNormGradGetWorkspaceSize, IN(0), IN(1), IN(2), IN(3), IN(4), IN(5), IN(6), OUT(0), OUT(1),
            OUT(2)));
  add("aclnnGroupNorm", aclnnGroupNorm, arrays({image, channel, channel}), arrays({image, groups, groups}),
      FIRST(aclnnGroupNormGetWorkspaceSize, IN(0), IN(1), IN(2), 2, 4, 15, 2, 1e-5, OUT(0), OUT(1), OUT(2)));
  add("aclnnGroupNormBackward", aclnnGroupNormBackward, arrays({image, image, groups, groups, channel}),
      arrays({image, channel, channel}),
      FIRST(aclnnGroupNormBackwardGetWorkspaceSize, IN(0), IN(1), IN(2), IN(3), IN(4), 2, 4, 15, 2, wanted, OUT(0),
            OUT(1), OUT(2)));
  add("aclnnGroupNormSilu", aclnnGroupNormSilu, arrays({image, channel, channel}), arrays({image, groups, groups}),
      FIRST(aclnnGroupNormSiluGetWorkspaceSize, IN(0), IN(1), IN(2), 2, 1e-5, OUT(0), OUT(1), OUT(2)));
  add("aclnnGroupNormSiluV2", aclnnGroupNormSiluV2, arrays({image, channel, channel}), arrays({image, groups, groups}),
      FIRST(aclnnGroupNormSiluV2GetWorkspaceSize, IN(0), IN(1), IN(2), 2, 1e-5, false, OUT(0), OUT(1), OUT(2)));
  add("aclnnGroupNormSwish", aclnnGroupNormSwish, arrays({image, channel, channel}), arrays({image, groups, groups}),
      FIRST(aclnnGroupNormSwishGetWorkspaceSize, IN(0), IN(1), IN(2), 2, format, 1e-5, true, 1.0, OUT(0), OUT(1),
            OUT(2)));
  add("aclnnGroupNormSwishGrad", aclnnGroupNormSwishGrad, arrays({image, groups, groups, image, channel, channel}),
      arrays({image, channel, channel}),
      FIRST(aclnnGroupNormSwishGradGetWorkspaceSize, IN(0), IN(1), IN(2), IN(3), IN(4), IN(5), 2, format, 1.0, true,
            true, OUT(0), OUT(1), OUT(2)));
  add("aclnnNsaCompress", aclnnNsaCompress, arrays({tokens, weight}), arrays({windows}),
      FIRST(aclnnNsaCompressGetWorkspaceSize, IN(0), IN(1), lengths, layout, block, stride, 0, OUT(0)));
  add("aclnnNsaCompressGrad", aclnnNsaCompressGrad, arrays({windows, tokens, weight}), arrays({tokens, weight}),
      FIRST(aclnnNsaCompressGradGetWorkspaceSize, IN(0), IN(1), IN(2), lengths, block, stride, 0, layout, OUT(0),
            OUT(1)));
  const aclTensor* const mask = [] {
    static const int64_t shape[] = {2, 1, 8, 32};
    static unsigned char none[2 * 8 * 32];
    return aclCreateTensor(shape, 4, ACL_BOOL, nullptr, 0, ACL_FORMAT_ND, shape, 4, none);
  }();
  add("aclnnScaledMaskedSoftmax", aclnnScaledMaskedSoftmax, arrays({scores}), arrays({scores}),
      FIRST(aclnnScaledMaskedSoftmaxGetWorkspaceSize, IN(0), mask, 0.5, false, OUT(0)));
  add("aclnnScaledMaskedSoftmaxBackward", aclnnScaledMaskedSoftmaxBackward, arrays({scores, scores}), arrays({scores}),
      FIRST(aclnnScaledMaskedSoftmaxBackwardGetWorkspaceSize, IN(0), IN(1), mask, 0.5, false, OUT(0)));
  const std::vector<int64_t> angles{1, 1, scores[2], scores[3]};
  add("aclnnRotaryPositionEmbedding", aclnnRotaryPositionEmbedding, arrays({scores, angles, angles}), arrays({scores}),
      FIRST(aclnnRotaryPositionEmbeddingGetWorkspaceSize, IN(0), IN(1), IN(2), 0, OUT(0)));
  add("aclnnRotaryPositionEmbeddingGrad", aclnnRotaryPositionEmbeddingGrad, arrays({scores, angles, angles, scores}),
      arrays({scores, angles, angles}),
      FIRST(aclnnRotaryPositionEmbeddingGradGetWorkspaceSize, IN(0), IN(1), IN(2), IN(3), 0, OUT(0), OUT(1), OUT(2)));
  const std::vector<int64_t> both{40, 64};
  add("aclnnSwiGlu", aclnnSwiGlu, arrays({both}), arrays({matrix}),
      FIRST(aclnnSwiGluGetWorkspaceSize, IN(0), -1, OUT(0)));
  add("aclnnSwiGluGrad", aclnnSwiGluGrad, arrays({matrix, both}), arrays({both}),
      FIRST(aclnnSwiGluGradGetWorkspaceSize, IN(0), IN(1), -1, OUT(0)));
  add("aclnnGelu", aclnnGelu, arrays({matrix}), arrays({matrix}), FIRST(aclnnGeluGetWorkspaceSize, IN(0), OUT(0)));
  add("aclnnGeluV2", aclnnGeluV2, arrays({matrix}), arrays({matrix}),
      FIRST(aclnnGeluV2GetWorkspaceSize, IN(0), 0, OUT(0)));
  add("aclnnGeluBackward", aclnnGeluBackward, arrays({matrix, matrix}), arrays({matrix}),
      FIRST(aclnnGeluBackwardGetWorkspaceSize, IN(0), IN(1), OUT(0)));
  const aclTensor* const target = [] {
    static const int64_t shape[] = {40};
    static int64_t classes[40];
    return aclCreateTensor(shape, 1, ACL_INT64, nullptr, 0, ACL_FORMAT_ND, shape, 1, classes);
  }();
  static char none[] = "none";
  const std::vector<int64_t> of_rows{40};
  add("aclnnCrossEntropyLoss", aclnnCrossEntropyLoss, arrays({matrix}), arrays({of_rows, matrix, of_rows, of_rows}),
      FIRST(aclnnCrossEntropyLossGetWorkspaceSize, IN(0), target, nullptr, none, -100, 0.0, 0.5, true, OUT(0), OUT(1),
            OUT(2), OUT(3)));
  add("aclnnCrossEntropyLossGrad", aclnnCrossEntropyLossGrad, arrays({of_rows, matrix}), arrays({matrix}),
      FIRST(aclnnCrossEntropyLossGradGetWorkspaceSize, IN(0), IN(1), target, nullptr, nullptr, nullptr, none, -100, 0.0,
            0.0, OUT(0)));
  add("aclnnGeluBackwardV2", aclnnGeluBackwardV2, arrays({matrix, matrix}), arrays({matrix}),
      FIRST(aclnnGeluBackwardV2GetWorkspaceSize, IN(0), IN(1), none, OUT(0)));
  add("aclnnSoftmax", aclnnSoftmax, arrays({matrix}), arrays({matrix}),
      FIRST(aclnnSoftmaxGetWorkspaceSize, IN(0), 0, OUT(0)));
  add("aclnnSoftmaxBackward", aclnnSoftmaxBackward, arrays({matrix, matrix}), arrays({matrix}),
      FIRST(aclnnSoftmaxBackwardGetWorkspaceSize, IN(0), IN(1), -1, OUT(0)));
  add("aclnnLogSoftmax", aclnnLogSoftmax, arrays({matrix}), arrays({matrix}),
      FIRST(aclnnLogSoftmaxGetWorkspaceSize, IN(0), 1, OUT(0)));
  add("aclnnLogSoftmaxBackward", aclnnLogSoftmaxBackward, arrays({matrix, matrix}), arrays({matrix}),
      FIRST(aclnnLogSoftmaxBackwardGetWorkspaceSize, IN(0), IN(1), 0, OUT(0)));
#undef FIRST
#undef OUT
#undef IN
  for (const Operator& op : made) {
    for (const auto& output : op.outputs) std::memset(output->data(), 0xFF, output->bytes());
  }
  return made;
}
