#include "npu/kernel.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <c10/util/SmallVector.h>

#include <string>
#include <utility>

#include "npu/crossing.h"
#include "npu/generator.h"
#include "npu/memory.h"
#include "npu/record.h"

namespace descend::npu {
namespace {

using at::Tensor;
using c10::IValue;

bool is_npu(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == kNpu; }

// The CPU's dispatch key for the layout that this call was dispatched on: dense or sparse.
c10::DispatchKeySet cpu_keys(c10::DispatchKeySet keys) {
  using c10::DispatchKey;
  for (const auto& [npu, cpu] : {std::pair{DispatchKey::SparsePrivateUse1, DispatchKey::SparseCPU},
                                 std::pair{DispatchKey::SparseCsrPrivateUse1, DispatchKey::SparseCsrCPU}}) {
    if (keys.has(npu)) return c10::DispatchKeySet(cpu);
  }
  return c10::DispatchKeySet(DispatchKey::CPU);
}

// Calls `each` with every tensor of a list, whose type may be Tensor[], Tensor?[] or Tensor[][].
template <class Each>
void for_each_tensor(const IValue& list, const Each& each) {
  if (list.isTensorList()) {
    const auto tensors = list.toTensorList();
    for (size_t i = 0; i < tensors.size(); ++i) each(tensors.get(i));
  } else if (list.isList()) {
    for (const IValue& element : list.toListRef()) {
      if (element.isTensor()) {
        each(element.toTensor());
      } else {
        for_each_tensor(element, each);
      }
    }
  }
}

template <class Change>
IValue change_tensors(const IValue& list, const Change& change) {
  if (list.isTensorList()) {
    auto tensors = list.toTensorList();
    c10::List<Tensor> changed;
    changed.reserve(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) changed.push_back(change(tensors.get(i)));
    return changed;
  }
  if (!list.isList()) return list;
  auto elements = list.toList();
  c10::impl::GenericList changed(elements.elementType());
  changed.reserve(elements.size());
  for (size_t i = 0; i < elements.size(); ++i) {
    const IValue element = elements.get(i);
    changed.push_back(element.isTensor() ? IValue(change(element.toTensor())) : change_tensors(element, change));
  }
  return changed;
}

bool is_tensor_list(const c10::Type& type) {
  if (const auto* list = type.castRaw<c10::ListType>()) {
    const c10::Type& element = *list->getElementType();
    return element.kind() == c10::TypeKind::TensorType || element.isSubtypeOf(*c10::OptionalType::ofTensor()) ||
           is_tensor_list(element);
  }
  const auto* optional = type.castRaw<c10::OptionalType>();
  return optional != nullptr && is_tensor_list(*optional->getElementType());
}

template <class T>
bool is_or_optional(const c10::Type& type) {
  if (type.castRaw<T>() != nullptr) return true;
  const auto* optional = type.castRaw<c10::OptionalType>();
  return optional != nullptr && optional->getElementType()->castRaw<T>() != nullptr;
}

// Whether an argument holds indices or classes. Ascend takes them as int32, too. The same as in
// src/descend/npu/rules.py.
bool is_indices(const std::string& argument) { return argument == "index" || argument == "target"; }

// The device that all tensors of a call are on. Tensors without dimensions may be on the CPU.
class CommonDevice {
 public:
  CommonDevice(const c10::OperatorHandle& op, bool mixes) : op_(op), mixes_(mixes) {}

  void add(const Tensor& tensor, bool written) {
    if (!tensor.defined()) return;
    const c10::Device device = tensor.device();
    if (device.type() == kNpu) {
      if (found_ && *found_ != device && !mixes_) refuse(*found_, device);
      if (!found_) found_ = device;
    } else if (!mixes_ && device.type() != c10::kMeta && (tensor.dim() != 0 || written) && !other_) {
      other_ = device;
    }
  }
  // The device, if a tensor is on one.
  std::optional<c10::Device> check() const {
    if (found_ && other_) refuse(*found_, *other_);
    return found_;
  }

 private:
  void refuse(c10::Device one, c10::Device other) const {
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", one, " and ",
                other, "! (", op_.operator_name(), ")");
  }

  const c10::OperatorHandle& op_;
  bool mixes_;
  std::optional<c10::Device> found_, other_;
};

}  // namespace

CpuKernel::CpuKernel(const c10::OperatorHandle& op, Special special) : special_(special) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string& name = schema.name();
  dtypes_ = {
      static_cast<uint32_t>(schema.arguments().size()), {}, {}, special.float16_in_float32, special.mixes_floats};
  bool views = false;
  for (uint32_t i = 0; i < dtypes_.count; ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const c10::Type& type = *argument.type();
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    if (written) dtypes_.written.push_back(i);
    if (is_indices(argument.name())) dtypes_.indices.push_back(i);
    if (is_or_optional<c10::TensorType>(type)) {
      arguments_.push_back({Kind::kTensor, written, i});
    } else if (is_tensor_list(type)) {
      arguments_.push_back({Kind::kTensors, written, i});
    } else if (is_or_optional<c10::DeviceObjType>(type)) {
      arguments_.push_back({Kind::kDevice, false, i});
    } else if (is_or_optional<c10::GeneratorType>(type)) {
      arguments_.push_back({Kind::kGenerator, false, i});
    }
  }
  for (const c10::Argument& result : schema.returns()) views = views || result.alias_info() != nullptr;
  const bool empty = name.rfind("aten::empty", 0) == 0 || name.rfind("aten::new_empty", 0) == 0;
  touches_memory_ = !dtypes_.written.empty() || !(views || empty);
}

void CpuKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  Recording recording(op, *stack, dtypes_.count);
  const size_t first = stack->size() - dtypes_.count;
  const auto argument = [&](const Argument& a) -> IValue& { return (*stack)[first + a.index]; };

  CommonDevice common(op, special_.mixes_devices);
  const IValue* asked = nullptr;
  for (const Argument& a : arguments_) {
    const IValue& value = argument(a);
    if (value.isTensor()) {
      common.add(value.toTensor(), a.written);
    } else if (a.kind == Kind::kTensors) {
      for_each_tensor(value, [&](const Tensor& tensor) {
        if (!(special_.indexes && tensor.defined() && tensor.device().is_cpu())) common.add(tensor, a.written);
      });
    } else if (value.isDevice()) {
      asked = &value;
    }
  }
  const std::optional<c10::Device> of_arguments = common.check();
  c10::Device device = asked != nullptr ? asked->toDevice() : of_arguments.value_or(c10::Device(kNpu));
  const bool on_npu = device.type() == kNpu;
  if (on_npu && !device.has_index()) device = current_device();

  if (touches_memory_ && of_arguments) wait(*of_arguments);
  if (touches_memory_ && on_npu && device != of_arguments) {
    initialize();
    wait(device);
  }
  recording.begin_work();

  Crossing crossing;
  c10::SmallVector<IValue, 4> written;
  for (const Argument& a : arguments_) {
    IValue& value = argument(a);
    switch (a.kind) {
      case Kind::kTensor:
        if (value.isTensor() && is_npu(value.toTensor())) {
          Tensor cpu = crossing.enter(value.toTensor());
          if (special_.asks_for_grad && value.toTensor().requires_grad()) cpu.set_requires_grad(true);
          if (a.written) written.push_back(std::move(value));
          value = std::move(cpu);
        }
        break;
      case Kind::kTensors:
        if (value.isList()) {
          if (a.written) written.push_back(value);
          value = change_tensors(value, [&](const Tensor& tensor) { return crossing.enter(tensor); });
        }
        break;
      case Kind::kDevice:
        if (value.isDevice() && value.toDevice().type() == kNpu) value = c10::Device(c10::kCPU);
        break;
      case Kind::kGenerator:
        TORCH_CHECK(of_arguments || asked != nullptr || !value.isGenerator(),
                    "Expected a 'cpu' device type for generator but found '", value.toGenerator().device(), "'");
        value = draw_from(value, device);
        break;
    }
  }

  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard without_autocast(c10::autocast_dispatch_keyset);
  std::optional<AllocateOn> allocate;
  if (on_npu) allocate.emplace(device);
  call_cpu_kernel(op, cpu_keys(keys), stack, dtypes_);

  for (const IValue& value : written) {
    if (value.isTensor()) {
      crossing.write_back(value.toTensor(), device);
    } else {
      for_each_tensor(value, [&](const Tensor& tensor) { crossing.write_back(tensor, device); });
    }
  }
  if (!on_npu) return;
  const size_t results = op.schema().returns().size();
  for (size_t i = 0; i < results; ++i) {
    IValue& value = (*stack)[stack->size() - results + i];
    if (i >= special_.first_kept) continue;
    if (value.isTensor()) {
      value = crossing.leave(std::move(value).toTensor(), device);
    } else if (value.isTensorList()) {
      auto tensors = value.toTensorList();
      for (size_t j = 0; j < tensors.size(); ++j) tensors.set(j, crossing.leave(tensors.extract(j), device));
    } else if (value.isList()) {
      value = change_tensors(value, [&](const Tensor& tensor) { return crossing.leave(tensor, device); });
    }
  }
}

}  // namespace descend::npu
