#include "npu/gradients.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

namespace descend::npu {

void wait_for_graphs(c10::Device device) {
  // The thread computes this gradient after it has freed the graphs before it. These tensors are no Python objects.
  const c10::AutoGradMode with_gradients(true);
  const at::Tensor x = at::empty({1}, at::TensorOptions(device)).set_requires_grad(true);
  torch::autograd::grad({x.view({1})}, {x}, {at::empty({1}, at::TensorOptions(device))});
}

}  // namespace descend::npu
