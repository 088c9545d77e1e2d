// What a call on plain CPU tensors looks like to the dispatcher.
#pragma once

#include <c10/core/DispatchKeySet.h>

namespace descend::pytorch {

// Whether keys that reached a kernel for AutogradCPU or CPU are those of plain CPU tensors, outside all of torch.func's
// transforms: these have levels of their own.
bool is_plain(c10::DispatchKeySet keys);

}  // namespace descend::pytorch
