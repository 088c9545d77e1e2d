// aclnnAddRmsNorm in place. It exists in the C interface only: in Python the results may be the inputs.
#pragma once

#include <span>

#include "operators/operator.h"

namespace descend {

std::span<const Operator* const> add_rms_norm_variants();

}  // namespace descend
