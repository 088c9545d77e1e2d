// One of the engine's operators as PyTorch's dispatcher calls it: on a stack of boxed values.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <vector>

#include "torch/engine_call.h"

namespace descend::pytorch {

class TorchOperator {
 public:
  // Throws c10::Error where engine and dispatcher do not both have the operator.
  explicit TorchOperator(const char* name);

  const Operator& definition() const { return *definition_; }
  size_t arguments() const { return parameters_.size(); }

  // Calls the engine with plain CPU tensors. Nothing where any argument is out of the ordinary, where the engine
  // refuses the call or where memory runs out: that is for Python to say.
  std::optional<std::vector<at::Tensor>> run(at::ArrayRef<c10::IValue> arguments) const;

 private:
  bool give(EngineCall& call, at::ArrayRef<c10::IValue> arguments) const;

  const Operator* definition_;
  std::vector<int> parameters_;  // the schema's arguments as the engine's parameters
  std::vector<int> outputs_;
};

}  // namespace descend::pytorch
