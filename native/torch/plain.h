// Recognizes calls on plain CPU tensors by their dispatch keys.
#pragma once

#include <c10/core/DispatchKeySet.h>

namespace descend::pytorch {

// `keys` are those of a call that reached a kernel for AutogradCPU or CPU. True if the tensors are plain CPU tensors
// and no transform of torch.func is active. Transforms wrap tensors in levels, which our kernels do not know.
bool is_plain(c10::DispatchKeySet keys);

}  // namespace descend::pytorch
