// Every operator by its name.
#pragma once

#include <span>
#include <string_view>

#include "operators/operator.h"

namespace descend {

extern const Operator group_norm_swish;
extern const Operator group_norm_swish_grad;
extern const Operator layer_norm;
extern const Operator layer_norm_backward;
extern const Operator nsa_compress;
extern const Operator nsa_compress_grad;
extern const Operator rms_norm;
extern const Operator rms_norm_grad;
extern const Operator scaled_masked_softmax;
extern const Operator scaled_masked_softmax_backward;

// All of them.
std::span<const Operator* const> operators();
const Operator* find_operator(std::string_view name);  // by either name; null if there is none

}  // namespace descend
