// Registration of kernels in PyTorch's dispatcher. src/descend/npu/rules.py says which operator gets which.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>

#include "npu/kernel.h"

namespace descend::npu {

// Makes PyTorch's CPU kernel compute an operator on the memory of the device's tensors. The operator may be of any
// namespace. `key` is the device's dispatch key for dense or for sparse tensors.
void serve(const std::string& name, const std::string& key, Special special);

// Makes PyTorch's kernel for dispatch key `owner` compute an operator for `key`, too. It gets the device's tensors.
void borrow(const std::string& name, const std::string& key, const std::string& owner);

// Finds an operator by name and overload, such as aten::add.Tensor. Throws if there is none.
c10::OperatorHandle find_operator(const std::string& name);

// Registers a kernel for a dispatch key, without PyTorch's warning that it replaces another.
void implement(const c10::OperatorHandle& op, c10::DispatchKey key, torch::CppFunction kernel);

}  // namespace descend::npu
