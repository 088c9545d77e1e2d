// Which operators of device `npu` are computed by what, and how PyTorch's dispatcher is told.
#pragma once

#include <cstddef>
#include <string>

namespace descend::npu {

// Puts the CPU's kernels in the place of torch_npu's, but for those that stay. Returns how many operators that are. A
// second call does nothing.
size_t register_kernels();

// Puts the CPU's kernel of an operator of any namespace in the place of what the device has.
void serve(const std::string& name);

}  // namespace descend::npu
