// The ten operators in double, on the elements of their tensors in logical order: what results are compared with.
#pragma once

#include <vector>

#include "call.h"

namespace fuzz {

using Numbers = std::vector<double>;

// The outputs of an accepted call, from its inputs. Both have an entry for each tensor of that kind. Those that are
// null or not used are empty.
std::vector<Numbers> reference(const Call& call, const std::vector<Numbers>& inputs);

}  // namespace fuzz
