// One of the engine's operators, called as PyTorch's dispatcher calls it: with boxed arguments (IValues).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <vector>

#include "torch/engine_call.h"

namespace descend::pytorch {

class TorchOperator {
 public:
  // Throws c10::Error if the engine or the dispatcher does not have the operator.
  explicit TorchOperator(const char* name);

  const Operator& definition() const { return *definition_; }
  size_t arguments() const { return parameters_.size(); }

  // Calls the engine. Empty if an argument is anything but a plain CPU tensor or a value of the expected type, if the
  // engine refuses the call, or if there is no memory. The caller then calls the kernel in Python, which raises the
  // error.
  std::optional<std::vector<at::Tensor>> run(at::ArrayRef<c10::IValue> arguments) const;

 private:
  bool give(EngineCall& call, at::ArrayRef<c10::IValue> arguments) const;

  const Operator* definition_;
  std::vector<int> parameters_;  // for each argument of the schema: the engine's parameter
  std::vector<int> outputs_;
};

}  // namespace descend::pytorch
