// The one kernel that computes an operator on device `npu` by its CPU kernel, on the same memory.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <vector>

namespace descend::npu {

// What there is to do for one operator's calls, read from its schema.
class CpuKernel : public c10::OperatorKernel {
 public:
  explicit CpuKernel(const c10::OperatorHandle& op);

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

 private:
  enum class Kind : uint8_t { kTensor, kTensors, kDevice, kGenerator };
  struct Argument {
    Kind kind;
    bool written;
    uint32_t index;
  };

  std::vector<Argument> arguments_;
  uint32_t count_;
  bool touches_memory_;  // views and new tensors without values do not
  bool mixes_devices_;   // tensors of the CPU may be among the arguments
  uint32_t kept_;        // results from this one on stay on the CPU
  bool asks_for_grad_;   // the kernel computes more where gradients are recorded
};

}  // namespace descend::npu
