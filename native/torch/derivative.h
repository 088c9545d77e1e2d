// Reverse-mode derivatives of the forward operators: each calls its backward operator.
#pragma once

#include <optional>
#include <vector>

#include "torch/operator.h"

namespace descend::pytorch {

// How to differentiate a forward operator; see derivative.cpp.
struct Derivative;

// Null for a backward operator: second derivatives are computed in Python.
const Derivative* find_derivative(const char* forward);

// Runs `forward` and records its backward function for autograd. Empty if the call is one for Python: if the engine
// does not compute it, or if its backward operator does not.
std::optional<std::vector<at::Tensor>> differentiate(const TorchOperator& forward, const Derivative& derivative,
                                                     at::ArrayRef<c10::IValue> arguments);

}  // namespace descend::pytorch
