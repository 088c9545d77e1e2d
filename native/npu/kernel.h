// The kernel of device `npu` for operators that PyTorch's CPU kernels compute, on the device's memory.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <vector>

#include "npu/widening.h"

namespace descend::npu {

// What is special about an operator. src/descend/npu/rules.py has the list.
struct Special {
  bool mixes_devices;       // CPU tensors may be among the arguments
  bool indexes;             // the tensors in its list are indices, and may be on the CPU
  uint32_t first_kept;      // this result and those after it stay on the CPU
  bool asks_for_grad;       // the CPU kernel computes more if an argument requires a gradient
  bool float16_in_float32;  // the CPU kernel accumulates in float16, so it gets float32
  bool mixes_floats;        // several of float16, bfloat16 and float32 may be in one call
  bool float64_alone;       // calls of other dtypes stay torch_npu's
};

// One operator's kernel. The constructor reads from the operator's schema what each argument needs.
class CpuKernel : public c10::OperatorKernel {
 public:
  CpuKernel(const c10::OperatorHandle& op, Special special);

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

 private:
  enum class Kind : uint8_t { kTensor, kTensors, kDevice, kGenerator };
  struct Argument {
    Kind kind;
    bool written;
    uint32_t index;
  };

  std::vector<Argument> arguments_;
  Dtypes dtypes_;
  bool touches_memory_;  // false for views, and for new tensors without values
  Special special_;
};

}  // namespace descend::npu
