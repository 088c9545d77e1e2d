#include "npu/registration.h"

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "npu/memory.h"
#include "torch/silence.h"

namespace descend::npu {
namespace {

using c10::DispatchKey;
using c10::OperatorHandle;

// Calls the kernel that PyTorch has for another dispatch key, with the same tensors.
class Borrowed : public c10::OperatorKernel {
 public:
  explicit Borrowed(c10::SafeKernelFunction kernel) : kernel_(std::move(kernel)) {}
  void operator()(const OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    kernel_.callBoxed(op, keys, stack);
  }

 private:
  c10::SafeKernelFunction kernel_;
};

// Computes calls whose first tensor is float64, and leaves others to the kernel that was there.
class Float64Kernel : public c10::OperatorKernel {
 public:
  Float64Kernel(CpuKernel cpu, c10::SafeKernelFunction other) : cpu_(std::move(cpu)), other_(std::move(other)) {}
  void operator()(const OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const c10::IValue& first = torch::jit::peek(*stack, 0, op.schema().arguments().size());
    if (first.toTensor().scalar_type() == at::kDouble) return cpu_(op, keys, stack);
    other_.callBoxed(op, keys, stack);
  }

 private:
  CpuKernel cpu_;
  c10::SafeKernelFunction other_;
};

// The library for a namespace and a key. It is kept until the process ends, since a library that is destroyed removes
// its kernels.
torch::Library& library_of(const std::string& space, DispatchKey key) {
  static std::map<std::pair<std::string, DispatchKey>, torch::Library> all;
  const auto found = all.find({space, key});
  if (found != all.end()) return found->second;
  torch::Library library(torch::Library::IMPL, space, key, __FILE__, __LINE__);
  return all.emplace(std::pair{space, key}, std::move(library)).first->second;
}

}  // namespace

c10::OperatorHandle find_operator(const std::string& name) {
  const size_t dot = name.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.substr(0, dot).c_str(),
                                                        dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
}

void implement(const OperatorHandle& op, DispatchKey key, torch::CppFunction kernel) {
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard quiet(&silence);
  const std::string& name = op.operator_name().name;
  library_of(name.substr(0, name.find(':')), key).impl(c10::toString(op.operator_name()).c_str(), std::move(kernel));
}

void serve(const std::string& name, const std::string& key, Special special) {
  static const bool installed = (install_allocator(), true);
  (void)installed;
  const auto op = find_operator(name);
  const DispatchKey here = c10::parseDispatchKey(key);
  if (special.float64_alone) {
    auto kernel = std::make_unique<Float64Kernel>(CpuKernel(op, special), op.getComputedKernelForDispatchKey(here));
    return implement(op, here, torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
  }
  implement(op, here, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<CpuKernel>(op, special)));
}

void borrow(const std::string& name, const std::string& key, const std::string& owner) {
  const auto op = find_operator(name);
  auto kernel = op.getComputedKernelForDispatchKey(c10::parseDispatchKey(owner));
  implement(op, c10::parseDispatchKey(key),
            torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Borrowed>(std::move(kernel))));
}

}  // namespace descend::npu
