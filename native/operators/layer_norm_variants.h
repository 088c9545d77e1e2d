// Two variants of aclnnLayerNorm, each with one rule more. They exist in the C interface only.
#pragma once

#include "operators/operator.h"

namespace descend {

const Operator& layer_norm_with_impl_mode();  // the parameters of layer norm, then implMode
const Operator& fast_layer_norm();

}  // namespace descend
