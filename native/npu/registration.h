// Registration of kernels in PyTorch's dispatcher. src/descend/npu/rules.py says which operator gets which.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>

#include "npu/kernel.h"

namespace descend::npu {

// Has the CPU's kernel compute an operator, of any namespace, on the memory of the device's tensors. `key` is the
// device's dispatch key for dense tensors or for sparse ones.
void serve(const std::string& name, const std::string& key, Special special);

// Has the kernel that PyTorch has for the dispatch key `owner` called for `key`, with the device's tensors.
void borrow(const std::string& name, const std::string& key, const std::string& owner);

// An operator by name and overload, as in aten::add.Tensor; throws where there is none.
c10::OperatorHandle find_operator(const std::string& name);

// Registers a kernel for a dispatch key, without PyTorch's warning that it replaces another.
void implement(const c10::OperatorHandle& op, c10::DispatchKey key, torch::CppFunction kernel);

}  // namespace descend::npu
