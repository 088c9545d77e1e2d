#include "torch/overrides.h"

#include <ATen/FuncTorchTLS.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/_fused_rms_norm_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/rms_norm_compositeimplicitautograd_dispatch.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <type_traits>
#include <vector>

#include "torch/norms.h"
#include "torch/plain.h"
#include "torch/silence.h"

// Threads may call an operator while another thread registers or removes its kernel, and PyTorch does not lock its
// table of kernels against them. Two things make that safe:
// - The registered kernels are functions without state. So nothing breaks if a thread calls one that was removed.
// - Each has the types of PyTorch's own kernel, SymInt where that has SymInt. PyTorch keeps functions with SymInt and
//   those with int in two pointers, of which one is null; it tests a pointer and may read it again to call it. If the
//   new kernel were in the other pointer, the second read could find null.

namespace descend::pytorch {
namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;

using Two = std::tuple<Tensor, Tensor>;

static_assert(std::is_same_v<decltype(native_layer_norm), at::_ops::native_layer_norm::schema>);
static_assert(std::is_same_v<decltype(native_layer_norm_backward), at::_ops::native_layer_norm_backward::schema>);
static_assert(std::is_same_v<decltype(fused_rms_norm), at::_ops::_fused_rms_norm::schema>);

// PyTorch's autograd kernel of _fused_rms_norm. It needs a kernel for the CPU, which PyTorch itself does not have.
const c10::SafeKernelFunction* derivatives = nullptr;

bool is_recorded(const Tensor& tensor) {
  return (c10::GradMode::is_enabled() && tensor.requires_grad()) || torch::autograd::isFwGradDefined(tensor);
}

// Dispatch key AutogradCPU. PyTorch has no kernel of this operator for the CPU: it composes the operator of others at
// this key, and autograd differentiates those. This function does the same for calls that the engine does not take:
// other kinds of tensors, transforms, tracing.
Two autograd_fused_rms_norm(DispatchKeySet keys, const Tensor& input, at::IntArrayRef normalized_shape,
                            const OptionalTensor& weight, std::optional<double> eps) {
  if (!is_plain(keys) || !serves_rms_norm(input, normalized_shape, weight)) {
    return at::compositeimplicitautograd::_fused_rms_norm(input, normalized_shape, weight, eps);
  }
  if (!is_recorded(input) && !(weight && weight->defined() && is_recorded(*weight))) {
    return fused_rms_norm(input, normalized_shape, weight, eps);
  }
  torch::jit::Stack stack{input, normalized_shape, weight, eps};
  derivatives->callBoxed(derivatives->opHandle(), keys, &stack);
  return {std::move(stack[0]).toTensor(), std::move(stack[1]).toTensor()};
}

// Dispatch key Functionalize, which torch.compile and torch.export use. The composition keeps their graphs the same as
// without the engine.
Two functional_fused_rms_norm(const Tensor& input, at::IntArrayRef normalized_shape, const OptionalTensor& weight,
                              std::optional<double> eps) {
  return at::compositeimplicitautograd::_fused_rms_norm(input, normalized_shape, weight, eps);
}

// Dispatch key AutogradCPU. If the weight has another dtype than the input, as under autocast, PyTorch does not call
// _fused_rms_norm; this does. There is no kernel for key CPU, which inference mode would call: with one, torch.export
// would no longer decompose this operator.
Tensor rms_norm(DispatchKeySet keys, const Tensor& input, c10::SymIntArrayRef normalized_shape,
                const OptionalTensor& weight, std::optional<double> eps) {
  if (weight && weight->defined() && weight->scalar_type() != input.scalar_type() && is_plain(keys)) {
    const auto sizes = c10::asIntArrayRefSlowOpt(normalized_shape);
    if (sizes && serves_rms_norm(input, *sizes, weight)) {
      return std::get<0>(at::_fused_rms_norm(input, *sizes, weight, eps));
    }
  }
  return at::compositeimplicitautograd::rms_norm_symint(input, normalized_shape, weight, eps);
}

torch::Library library_of(DispatchKey key) { return {torch::Library::IMPL, "aten", key, __FILE__, __LINE__}; }

// Registers kernels that are never removed: a backward pass may need them after override_norms(false). PyTorch has no
// kernels of its own here.
void register_for_good() {
  static std::vector<torch::Library> kept;
  if (!kept.empty()) return;
  kept.push_back(library_of(DispatchKey::CPU));
  kept.back().impl("_fused_rms_norm_backward", TORCH_FN(fused_rms_norm_backward));
  kept.push_back(library_of(DispatchKey::FuncTorchBatched));
  kept.back().impl("_fused_rms_norm_backward", TORCH_FN(composed_rms_norm_backward));
}

}  // namespace

void override_norms(bool on) {
  static std::vector<torch::Library> libraries;
  if (!on) {
    while (!libraries.empty()) libraries.pop_back();
    return;
  }
  if (!libraries.empty()) return;
  Silence silence;  // PyTorch warns that kernels are replaced
  const c10::WarningUtils::WarningHandlerGuard quiet(&silence);
  register_for_good();
  torch::Library& cpu = libraries.emplace_back(library_of(DispatchKey::CPU));
  cpu.impl("native_layer_norm", TORCH_FN(native_layer_norm));
  cpu.impl("native_layer_norm_backward", TORCH_FN(native_layer_norm_backward));
  cpu.impl("_fused_rms_norm", TORCH_FN(fused_rms_norm));
  if (derivatives == nullptr) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_fused_rms_norm", "");
    derivatives = new c10::SafeKernelFunction(op.getComputedKernelForDispatchKey(DispatchKey::AutogradCPU));
  }
  torch::Library& autograd = libraries.emplace_back(library_of(DispatchKey::AutogradCPU));
  autograd.impl("_fused_rms_norm", TORCH_FN(autograd_fused_rms_norm));
  autograd.impl("rms_norm", TORCH_FN(rms_norm));
  libraries.emplace_back(library_of(DispatchKey::Functionalize))
      .impl("_fused_rms_norm", TORCH_FN(functional_fused_rms_norm));
}

}  // namespace descend::pytorch
