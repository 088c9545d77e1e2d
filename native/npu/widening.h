// Some CPU kernels refuse dtypes that Ascend's kernels take. Some accumulate in float16, which is slow and less exact.
// Such calls are computed in float32 and rounded once, or with indices in int64.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <vector>

namespace descend::npu {

// The arguments of an operator whose dtypes may have to change.
struct Dtypes {
  uint32_t count;                 // of arguments
  std::vector<uint32_t> written;  // the arguments that are written to
  std::vector<uint32_t> indices;  // those that are indices or classes
  bool float16_in_float32;        // the kernel accumulates in float16
  bool mixes_floats;              // several of float16, bfloat16 and float32 may be in one call
};

// Calls the CPU kernel with the arguments on the stack.
// - If it refuses float16 or bfloat16, it is called again with float32 tensors. Its float32 results are then rounded
//   to the narrower dtype. With `float16_in_float32` it gets float32 at once, if all floating-point tensors are
//   float16.
// - With `mixes_floats`, if it refuses unlike dtypes, it is called again with float32 tensors, too. Its result is then
//   rounded to the dtype of the first argument.
// - If it refuses indices in int32, it is called again with indices in int64.
void call_cpu_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack,
                     const Dtypes& dtypes);

}  // namespace descend::npu
