// Calls of operators, decoded from bytes: both phases are made, their statuses compared with the contract's model, and
// results with the reference.
#pragma once

#include "acl/acl.h"
#include "bytes.h"
#include "call.h"
#include "reference.h"

namespace fuzz {

// A call of an operator in its life: phase 1, then perhaps phase 2, again and with new addresses where the executor is
// repeatable. `stream_alive`: whether `stream` is one.
void call_operator(Bytes& bytes, Call call, aclrtStream stream, bool stream_alive);

// What the operator itself computes from these inputs on host, where all tensors are contiguous and in double. It is
// the reference of operators that have no other one here. Empty if the operator does not take DOUBLE in this call.
std::vector<Numbers> compute_in_double(const Call& call, const std::vector<Numbers>& inputs);

}  // namespace fuzz
