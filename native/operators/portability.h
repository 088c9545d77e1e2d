// Where a call would work.
#pragma once

#include "operators/operator.h"

namespace descend {

// What the first phase of this call answers on that product, whatever the call's own; nothing is planned.
Status verdict_on(Product product, const Call& call);

}  // namespace descend
