// Which operators of device `npu` are computed by what, and how PyTorch's dispatcher is told.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <cstddef>
#include <string>

namespace descend::npu {

// Puts the CPU's kernels in the place of torch_npu's, but for those that stay. Returns how many operators that are. A
// second call does nothing.
size_t register_kernels();

// Puts the CPU's kernel of an operator of any namespace in the place of what the device has.
void serve(const std::string& name);

// An operator by name and overload, as in aten::add.Tensor; throws where there is none.
c10::OperatorHandle find_operator(const std::string& name);

// Puts a kernel in the place of what the device has, quietly.
void implement(const c10::OperatorHandle& op, torch::CppFunction kernel);

}  // namespace descend::npu
