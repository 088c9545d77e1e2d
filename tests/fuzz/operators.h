// Calls of operators, decoded from bytes: both phases are made, their statuses compared with the contract's model, and
// results with the reference.
#pragma once

#include "acl/acl.h"
#include "bytes.h"
#include "call.h"

namespace fuzz {

// A call of an operator in its life: phase 1, then perhaps phase 2, again and with new addresses where the executor is
// repeatable. `stream_alive`: whether `stream` is one.
void call_operator(Bytes& bytes, Call call, aclrtStream stream, bool stream_alive);

}  // namespace fuzz
