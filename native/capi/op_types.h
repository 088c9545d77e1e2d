// The operator types that can be called by name.
#pragma once

#include <string>
#include <string_view>

#include "capi/op_type.h"

namespace descend::capi {

// Null if there is no such type.
const OpType* find_op_type(std::string_view name);
// The names of all types, for messages.
std::string op_type_names();

}  // namespace descend::capi
