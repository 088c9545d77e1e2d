// Every operator by its name. The list is made by CMake: an operator is what a file of this folder defines.
#pragma once

#include <span>
#include <string_view>

#include "operators/operator.h"

namespace descend {

#define DESCEND_OPERATOR(name) extern const Operator name;
#include "operators/list.inc"
#undef DESCEND_OPERATOR

// All of them, by the alphabet.
std::span<const Operator* const> operators();
const Operator* find_operator(std::string_view name);  // by either name; null if there is none

}  // namespace descend
