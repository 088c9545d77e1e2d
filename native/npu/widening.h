// Some CPU kernels refuse dtypes that Ascend's kernels take, and some add in float16, which is slow and less exact.
// Such calls are computed in float32 and rounded once, or with indices in int64.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <vector>

namespace descend::npu {

// What a call may need changed.
struct Dtypes {
  uint32_t count;                 // of arguments
  std::vector<uint32_t> written;  // the arguments that are written to
  std::vector<uint32_t> indices;  // those that are indices or classes
  bool float16_in_float32;        // the kernel adds in float16
};

// Calls the kernel of the CPU with the arguments on the stack.
// - If it refuses the dtype of a float16 or bfloat16 tensor, it is called with float32 in its place. Results in float32
//   are then rounded to that dtype. `float16_in_float32` does so at once where all floating-point tensors are float16.
// - If it refuses indices in int32, it is called with int64 in their place.
void call_in_own_or_wide(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack,
                         const Dtypes& dtypes);

}  // namespace descend::npu
