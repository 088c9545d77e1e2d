// The forward operators' derivatives in reverse: each linked to its backward operator.
#pragma once

#include <optional>
#include <vector>

#include "torch/operator.h"

namespace descend::pytorch {

// How a forward operator is differentiated; see derivative.cpp.
struct Link;

// Null for an operator that has none: the backward operators, whose second derivatives are Python's.
const Link* find_link(const char* forward);

// Runs `forward` and records the way back. Nothing where the call is out of the ordinary.
std::optional<std::vector<at::Tensor>> differentiate(const TorchOperator& forward, const Link& link,
                                                     at::ArrayRef<c10::IValue> arguments);

}  // namespace descend::pytorch
