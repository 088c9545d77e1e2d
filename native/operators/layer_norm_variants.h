// Two variants of aclnnLayerNorm, each with one rule more. They exist in the C interface only.
#pragma once

#include "operators/operator.h"

namespace descend {

// aclnnLayerNormWithImplMode, which has the parameters of layer norm, then implMode; aclnnFastLayerNorm.
std::span<const Operator* const> layer_norm_variants();

}  // namespace descend
