#include "npu/gradients.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

namespace descend::npu {

void wait_for_graphs(c10::Device device) {
  // The thread takes up this gradient when it is done with the graphs before it. Its tensors are no Python objects.
  const c10::AutoGradMode with_gradients(true);
  const at::Tensor x = at::empty({1}, at::TensorOptions(device)).set_requires_grad(true);
  torch::autograd::grad({x.view({1})}, {x}, {at::empty({1}, at::TensorOptions(device))});
}

}  // namespace descend::npu
