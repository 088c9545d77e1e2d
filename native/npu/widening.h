// Some CPU kernels refuse 16-bit dtypes that Ascend's kernels take. Such calls are computed in float32, rounded once.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <vector>

namespace descend::npu {

// Calls the kernel of the CPU with what is on the stack: `count` arguments, of which those of `written` are written to.
// If it refuses the dtype of a float16 or bfloat16 tensor, it is called with float32 in its place. Results in float32
// are then rounded to that dtype.
void call_in_own_or_wide(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack,
                         uint32_t count, const std::vector<uint32_t>& written);

}  // namespace descend::npu
