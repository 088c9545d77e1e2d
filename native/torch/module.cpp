// The Python module descend._torch: the operators' kernels for PyTorch's dispatcher, in C++. They compute calls on
// plain CPU tensors. All other calls go to the kernels in Python (descend.torch.library), also those that fail, so that
// Python raises the error.
#include <c10/core/GradMode.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/library.h>

#include <atomic>
#include <memory>

#include "torch/derivative.h"
#include "torch/operator.h"
#include "torch/overrides.h"
#include "torch/plain.h"

namespace descend::pytorch {
namespace {

std::atomic<bool> enabled = true;

using torch::jit::Stack;

// Calls a kernel in Python with the arguments on the stack, after `first` where that is not null.
void call_python(const py::object& kernel, const c10::OperatorHandle& op, const c10::DispatchKeySet* first,
                 Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  std::vector<c10::IValue> arguments = torch::jit::pop(*stack, schema.arguments().size());
  const py::gil_scoped_acquire gil;
  py::list positional;
  py::dict named;
  if (first != nullptr) positional.append(py::int_(first->raw_repr()));
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    py::object value = torch::jit::toPyObject(std::move(arguments[i]));
    if (argument.kwarg_only()) {
      named[argument.name().c_str()] = std::move(value);
    } else {
      positional.append(std::move(value));
    }
  }
  const auto result =
      py::reinterpret_steal<py::object>(PyObject_Call(kernel.ptr(), py::tuple(positional).ptr(), named.ptr()));
  if (!result) {
    python_error error;
    error.persist();  // keeps the message for callers in C++
    throw error;
  }
  const auto push = [&](PyObject* object) {
    torch::jit::push(*stack, object == Py_None ? at::Tensor() : THPVariable_Unpack(object));
  };
  if (schema.returns().size() == 1) {
    push(result.ptr());
  } else {
    for (const py::handle each : result) push(each.ptr());
  }
}

void push_results(std::vector<at::Tensor> results, size_t arguments, Stack* stack) {
  torch::jit::drop(*stack, arguments);
  for (at::Tensor& result : results) torch::jit::push(*stack, std::move(result));
}

// Common to both kernels of an operator: the engine's operator, and the Python kernel for all other calls.
class Kernel : public c10::OperatorKernel {
 public:
  Kernel(std::shared_ptr<const TorchOperator> op, py::object python) : op_(std::move(op)), python_(std::move(python)) {}
  ~Kernel() override { (void)python_.release(); }  // not freed: the interpreter may have ended

 protected:
  std::shared_ptr<const TorchOperator> op_;
  py::object python_;
};

// Dispatch key CPU.
class CpuKernel : public Kernel {
 public:
  using Kernel::Kernel;

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet, Stack* stack) {
    if (enabled) {
      if (auto results = op_->run(torch::jit::last(*stack, op_->arguments()))) {
        return push_results(std::move(*results), op_->arguments(), stack);
      }
    }
    call_python(python_, handle, nullptr, stack);
  }
};

// Dispatch key AutogradCPU.
class AutogradKernel : public Kernel {
 public:
  AutogradKernel(std::shared_ptr<const TorchOperator> op, py::object python)
      : Kernel(std::move(op), std::move(python)), derivative_(find_derivative(op_->definition().name)) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    if (enabled && is_plain(keys)) {
      if (auto results = run(torch::jit::last(*stack, op_->arguments()))) {
        return push_results(std::move(*results), op_->arguments(), stack);
      }
    }
    call_python(python_, handle, &keys, stack);
  }

 private:
  std::optional<std::vector<at::Tensor>> run(at::ArrayRef<c10::IValue> arguments) const {
    bool record = false;
    for (const c10::IValue& argument : arguments) {
      if (!argument.isTensor() || !argument.toTensor().defined()) continue;
      if (torch::autograd::isFwGradDefined(argument.toTensor())) return std::nullopt;  // forward mode
      record = record || argument.toTensor().requires_grad();
    }
    if (!record || !c10::GradMode::is_enabled()) return op_->run(arguments);
    return derivative_ == nullptr ? std::nullopt : differentiate(*op_, *derivative_, arguments);
  }

  const Derivative* derivative_;
};

template <class K>
void implement(const char* name, c10::DispatchKey key, std::shared_ptr<const TorchOperator> op, py::object python) {
  torch::Library library(torch::Library::IMPL, "descend", key, __FILE__, __LINE__);
  library.impl(name, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<K>(std::move(op), std::move(python))));
  static std::vector<torch::Library> kept;  // a library that is destroyed removes its kernels
  kept.push_back(std::move(library));
}

// Registers the kernels of operator descend::name. For anything but plain CPU tensors they call `kernel(*args,
// **named)` and `autograd(keys, *args, **named)`.
void implement_operator(const char* name, py::object kernel, py::object autograd) {
  const auto op = std::make_shared<const TorchOperator>(name);
  implement<CpuKernel>(name, c10::DispatchKey::CPU, op, std::move(kernel));
  implement<AutogradKernel>(name, c10::DispatchKey::AutogradCPU, op, std::move(autograd));
}

}  // namespace
}  // namespace descend::pytorch

PYBIND11_MODULE(_torch, module) {
  using namespace descend::pytorch;
  module.doc() = "The kernels in C++ for PyTorch's dispatcher. Use descend.torch instead.";
  const py::object engine = py::module_::import("descend._native").attr("_engine");
  const auto* table =
      static_cast<const descend::Engine*>(PyCapsule_GetPointer(engine.ptr(), descend::Engine::kCapsule));
  if (table == nullptr) throw py::error_already_set();
  set_engine(table);
  module.def(
      "implement", implement_operator, py::arg("name"), py::arg("kernel"), py::arg("autograd"),
      "Registers an operator's kernels in C++, and the functions that they call for anything but plain CPU tensors.");
  module.def("follow_threads", follow_threads,
             "Sets the engine's number of threads to PyTorch's, if PyTorch's has changed.");
  module.def("override_norms", override_norms, py::arg("on"), py::call_guard<py::gil_scoped_release>(),
             "Registers the engine's kernels for PyTorch's own norms on the CPU, or removes them.");
  module.def(
      "enable", [](bool on) { return enabled.exchange(on); }, py::arg("on"),
      "Switches the kernels in C++ on or off; off, Python computes all calls. Returns whether they were on.");
}
