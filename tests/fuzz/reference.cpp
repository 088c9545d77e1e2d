#include "reference.h"

#include <algorithm>
#include <string_view>

#include "bytes.h"
#include "references.h"
#include "table.h"

namespace fuzz {
namespace {

struct Named {
  std::string_view name;
  Reference* reference;
};

const Named kNamed[] = {
    {"aclnnRmsNorm", rms_norm},
    {"aclnnRmsNormGrad", rms_norm_grad},
    {"aclnnLayerNorm", layer_norm},
    {"aclnnLayerNormWithImplMode", layer_norm},
    {"aclnnFastLayerNorm", layer_norm},
    {"aclnnLayerNormBackward", layer_norm_backward},
    {"aclnnGroupNormSwish", group_norm_swish},
    {"aclnnGroupNormSwishGrad", group_norm_swish_grad},
    {"aclnnNsaCompress", nsa_compress},
    {"aclnnNsaCompressGrad", nsa_compress_grad},
    {"aclnnScaledMaskedSoftmax", masked_softmax},
    {"aclnnScaledMaskedSoftmaxBackward", masked_softmax},
    {"aclnnAddLayerNorm", add_layer_norm},
    {"aclnnAddLayerNormGrad", add_layer_norm_grad},
    {"aclnnAddRmsNorm", add_rms_norm},
    {"aclnnInplaceAddRmsNorm", add_rms_norm_in_place},
    {"aclnnApplyAdamW", apply_adam_w},
    {"aclnnApplyAdamWV2", apply_adam_w_v2},
    {"aclnnCrossEntropyLoss", cross_entropy_loss},
    {"aclnnCrossEntropyLossGrad", cross_entropy_loss_grad},
    {"aclnnDeepNorm", deep_norm},
    {"aclnnDeepNormGrad", deep_norm_grad},
    {"aclnnGelu", gelu},
    {"aclnnGeluV2", gelu_v2},
    {"aclnnGeluBackward", gelu_backward},
    {"aclnnGeluBackwardV2", gelu_backward_v2},
    {"aclnnGemmaRmsNorm", gemma_rms_norm},
    {"aclnnGroupNorm", group_norm},
    {"aclnnGroupNormBackward", group_norm_backward},
    {"aclnnGroupNormSilu", group_norm_silu},
    {"aclnnGroupNormSiluV2", group_norm_silu},
    {"aclnnLogSoftmax", log_softmax},
    {"aclnnLogSoftmaxBackward", log_softmax_backward},
    {"aclnnRotaryPositionEmbedding", rotary_position_embedding},
    {"aclnnRotaryPositionEmbeddingGrad", rotary_position_embedding_grad},
    {"aclnnSoftmax", softmax},
    {"aclnnSoftmaxBackward", softmax_backward},
    {"aclnnSwiGlu", swi_glu},
    {"aclnnSwiGluGrad", swi_glu_grad},
};

}  // namespace

int64_t broadcast_element(const Shape& small, const Shape& shape, int64_t i) {
  int64_t place = 0, step = 1;
  for (size_t back = 1; back <= shape.size(); ++back) {
    const int64_t index = i % shape[shape.size() - back];
    i /= shape[shape.size() - back];
    if (back > small.size()) continue;
    const int64_t dim = small[small.size() - back];
    place += (dim == 1 ? 0 : index) * step;
    step *= dim;
  }
  return place;
}

std::vector<Numbers> reference(const Call& call, const std::vector<Numbers>& inputs) {
  const std::string_view name = name_of(call);
  const auto* const found =
      std::find_if(std::begin(kNamed), std::end(kNamed), [&](const Named& one) { return one.name == name; });
  if (found == std::end(kNamed)) fault(std::string(name) + " has no reference");
  return found->reference(call, inputs);
}

}  // namespace fuzz
