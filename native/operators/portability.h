// On which products a call would work.
#pragma once

#include "operators/operator.h"

namespace descend {

// The result of the first phase of this call on another product. Nothing is planned.
Status verdict_on(Product product, const Call& call);

}  // namespace descend
