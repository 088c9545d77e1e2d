// Phase 1 of any operator.
#pragma once

#include "operators/operator.h"
#include "operators/plan.h"

namespace descend {

// Checks the whole contract in the documented order. If `plan` is not null, fills it. If an argument could not be read
// (kUnread), the failure has no sentence, since the reader has the reason.
Status prepare(const Call& call, Plan* plan);

// Whether prepare() would make the same plan for another call: if the arguments are the same, and the tensors of both
// calls do not overlap.
bool holds(const Plan& plan, const Call& made_for, const Call& call);

}  // namespace descend
