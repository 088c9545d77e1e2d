#include "npu/registration.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "npu/kernel.h"
#include "npu/memory.h"
#include "npu/recurrent.h"
#include "npu/silence.h"

namespace descend::npu {
namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::OperatorHandle;
using torch::jit::Stack;

// Operators that stay torch_npu's: those that change storages and torch_npu's descriptions of them, those on pinned
// memory, and those that call Descend's own aclnn functions.
const std::unordered_set<std::string_view> kStays = {
    "aten::set_",
    "aten::record_stream",
    "aten::is_pinned",
    "aten::_pin_memory",
    "aten::_has_compatible_shallow_copy_type",
    "aten::_lazy_clone",
    "aten::native_layer_norm",
    "aten::native_layer_norm_backward",
    "aten::scaled_dot_product_attention",  // it calls npu_fusion_attention_v3
};

// Operators that make a sparse tensor or read its parts. All other sparse operators are built on them.
const std::unordered_set<std::string_view> kSparseStays = {
    "aten::_sparse_coo_tensor_with_dims",
    "aten::_sparse_coo_tensor_with_dims_and_tensors",
    "aten::_sparse_compressed_tensor_with_dims",
    "aten::_indices",
    "aten::_values",
    "aten::indices",
    "aten::values",
    "aten::_nnz",
    "aten::sparse_dim",
    "aten::dense_dim",
    "aten::_dimI",
    "aten::_dimV",
    "aten::is_coalesced",
    "aten::_coalesced_",
    "aten::sparse_resize_",
    "aten::sparse_resize_and_clear_",
    "aten::resize_as_sparse_",
    "aten::crow_indices",
    "aten::col_indices",
    "aten::ccol_indices",
    "aten::row_indices",
};

// Calls the kernel that PyTorch has for another dispatch key, with the same tensors.
class Borrowed : public c10::OperatorKernel {
 public:
  explicit Borrowed(c10::SafeKernelFunction kernel) : kernel_(std::move(kernel)) {}
  void operator()(const OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    kernel_.callBoxed(op, keys, stack);
  }

 private:
  c10::SafeKernelFunction kernel_;
};

// --- operators with a kernel of their own ---------------------------------------------------------------------------

// The CPU kernel would draw from the CPU's default generator.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  if (input.numel() == 0 || !train.value_or(true) || p == 0) {
    return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  }
  const Tensor mask = at::empty_like(input, input.options().dtype(at::kBool)).bernoulli_(1 - p);
  const double scale = p == 1 ? 0 : 1 / (1 - p);
  return {input.mul(mask).mul_(scale), mask};
}

Tensor copy_from(const Tensor& self, const Tensor& dst, bool non_blocking) { return dst.copy_(self, non_blocking); }

Tensor copy_from_and_resize(const Tensor& self, const Tensor& dst) { return dst.resize_(self.sizes()).copy_(self); }

// --------------------------------------------------------------------------------------------------------------------

template <class Kernel, class... Arguments>
torch::CppFunction boxed(Arguments&&... arguments) {
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(std::forward<Arguments>(arguments)...));
}

struct Libraries {
  Libraries(const char* name, DispatchKey key) : library(torch::Library::IMPL, name, key, __FILE__, __LINE__) {}
  void add(const OperatorHandle& op, torch::CppFunction kernel) {
    library.impl(c10::toString(op.operator_name()).c_str(), std::move(kernel));
  }
  torch::Library library;
};

bool draws_without_generator(const OperatorHandle& op) {
  if (!op.hasTag(at::Tag::nondeterministic_seeded)) return false;
  for (const c10::Argument& argument : op.schema().arguments()) {
    if (argument.name() == "generator") return false;
  }
  return true;
}

std::vector<OperatorHandle> operators() {
  auto& dispatcher = c10::Dispatcher::singleton();
  std::vector<OperatorHandle> all;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    if (const auto op = dispatcher.findSchema(name)) all.push_back(*op);
  }
  return all;
}

size_t register_dense(const std::vector<OperatorHandle>& all, Libraries& dense, Libraries& autograd) {
  size_t count = 0;
  for (const OperatorHandle& op : all) {
    const std::string& name = op.operator_name().name;
    if (kStays.count(name) != 0) continue;
    const bool theirs = op.hasKernelForDispatchKey(DispatchKey::PrivateUse1);
    const bool taken_apart = op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
    if (taken_apart && !theirs) continue;
    // torch_npu has a derivative of its own here, or PyTorch decomposes the operator and has none: use the CPU's.
    if ((op.hasKernelForDispatchKey(DispatchKey::AutogradPrivateUse1) || taken_apart) &&
        op.hasComputedKernelForDispatchKey(DispatchKey::AutogradCPU)) {
      autograd.add(op, boxed<Borrowed>(op.getComputedKernelForDispatchKey(DispatchKey::AutogradCPU)));
    }
    const bool own =
        name == "aten::native_dropout" || name == "aten::_copy_from" || name == "aten::_copy_from_and_resize";
    if (own || !op.hasComputedKernelForDispatchKey(DispatchKey::CPU)) continue;
    const bool of_cpu = op.hasKernelForDispatchKey(DispatchKey::CPU);
    if (!theirs && !of_cpu && name != "aten::mode") continue;  // PyTorch composes it of others, on any device
    const bool pins = name == "aten::_to_copy";  // what it takes from a device without waiting, if it sees the device
    if (!of_cpu && (draws_without_generator(op) || pins)) {
      dense.add(op, boxed<Borrowed>(op.getComputedKernelForDispatchKey(DispatchKey::CPU)));
    } else {
      dense.add(op, boxed<CpuKernel>(op));
    }
    ++count;
  }
  return count;
}

void register_sparse(const std::vector<OperatorHandle>& all, DispatchKey npu, DispatchKey cpu, Libraries& library) {
  for (const OperatorHandle& op : all) {
    if (kSparseStays.count(op.operator_name().name) != 0) continue;
    if (op.hasKernelForDispatchKey(cpu) ||
        (op.hasKernelForDispatchKey(npu) && op.hasComputedKernelForDispatchKey(cpu))) {
      library.add(op, boxed<CpuKernel>(op));
    }
  }
}

}  // namespace

size_t register_kernels() {
  static const size_t count = [] {
    install_allocator();
    Silence silence;  // PyTorch warns of each kernel that replaces another
    const c10::WarningUtils::WarningHandlerGuard quiet(&silence);
    static Libraries dense("aten", DispatchKey::PrivateUse1), autograd("aten", DispatchKey::AutogradPrivateUse1),
        sparse("aten", DispatchKey::SparsePrivateUse1), compressed("aten", DispatchKey::SparseCsrPrivateUse1);
    const auto all = operators();
    const size_t registered = register_dense(all, dense, autograd);
    register_sparse(all, DispatchKey::SparsePrivateUse1, DispatchKey::SparseCPU, sparse);
    register_sparse(all, DispatchKey::SparseCsrPrivateUse1, DispatchKey::SparseCsrCPU, compressed);
    dense.library.impl("aten::native_dropout", native_dropout);
    dense.library.impl("aten::_copy_from", copy_from);
    dense.library.impl("aten::_copy_from_and_resize", copy_from_and_resize);
    register_cells(dense.library);
    return registered;
  }();
  return count;
}

c10::OperatorHandle find_operator(const std::string& name) {
  const size_t dot = name.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.substr(0, dot).c_str(),
                                                        dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
}

void implement(const c10::OperatorHandle& op, torch::CppFunction kernel) {
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard quiet(&silence);
  const std::string& name = op.operator_name().name;
  static std::vector<Libraries> kept;  // a library that is destroyed removes its kernels
  kept.emplace_back(name.substr(0, name.find(':')).c_str(), DispatchKey::PrivateUse1).add(op, std::move(kernel));
}

void serve(const std::string& name) {
  const auto op = find_operator(name);
  implement(op, boxed<CpuKernel>(op));
}

}  // namespace descend::npu
