// Calls of operators, made up from bytes: valid ones, and then some of what can be wrong with them.
#pragma once

#include "bytes.h"
#include "call.h"

namespace fuzz {

// A call without memory: `data` is set later.
Call make_call(Bytes& bytes);
// A call of an operator that is known by its table alone.
Call make_call_of_table(Bytes& bytes);

}  // namespace fuzz
