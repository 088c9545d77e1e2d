// aclnnLayerNorm under two other names of CANN, each with a rule more: functions of the C interface alone.
#pragma once

#include "operators/operator.h"

namespace descend {

const Operator& layer_norm_with_impl_mode();  // the parameters of layer norm, then implMode
const Operator& fast_layer_norm();

}  // namespace descend
