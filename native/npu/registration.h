// Which kernel computes which operator of device `npu`, and its registration in PyTorch's dispatcher.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <cstddef>
#include <string>

namespace descend::npu {

// Registers CPU kernels in the place of torch_npu's kernels, except for the operators that stay torch_npu's. Returns
// the number of operators. A second call does nothing.
size_t register_kernels();

// Registers the CPU kernel of an operator, of any namespace, for the device.
void serve(const std::string& name);

// An operator by name and overload, as in aten::add.Tensor; throws where there is none.
c10::OperatorHandle find_operator(const std::string& name);

// Registers a kernel for the device, without PyTorch's warning that it replaces another.
void implement(const c10::OperatorHandle& op, torch::CppFunction kernel);

}  // namespace descend::npu
