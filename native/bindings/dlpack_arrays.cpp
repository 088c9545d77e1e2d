#include "bindings/dlpack_arrays.h"

#include <array>
#include <string>
#include <utility>

#include "bindings/older_torch.h"
#include "bindings/refusal.h"
#include "bindings/tensor_memory.h"
#include "bindings/torch_tensors.h"

namespace descend::python {
namespace {

constexpr int32_t kMostDimensions = 64;  // of NumPy's arrays; no more are read

void import_dltensor(Call& call, int i, PyObject* object, const dlpack::Tensor& source) {
  const int32_t device = source.device.type;
  if (device != dlpack::kCpu && device != dlpack::kCudaHost && device != dlpack::kRocmHost) {
    refuse(call, i, concat("lies on a device (DLPack type ", device, "), but this build computes on the CPU."));
  }
  Tensor& tensor = call[i].tensor;
  tensor.dtype = dlpack_dtype(source.dtype);
  if (tensor.dtype == Dtype::kUndefined) {
    refuse(call, i, concat("is ", what_is(object), " whose dtype no operator takes."));
  }
  if (source.ndim < 0 || source.ndim > kMostDimensions) {
    refuse(call, i,
           concat("says that it has ", source.ndim, " dimensions, but must have 0 to ", Tensor::kMaxRank, "."));
  }
  if (source.ndim > 0 && source.shape == nullptr) {
    refuse(call, i, concat("is ", what_is(object), " with dimensions, but without a shape."));
  }
  tensor.shape.assign(source.shape, source.ndim);
  if (source.strides != nullptr) {
    tensor.strides.assign(source.strides, source.ndim);
  } else {
    tensor.strides = contiguous_strides(tensor.shape);
  }
  tensor.format = Format::kND;
  if (source.data == nullptr && !tensor.empty()) {
    refuse(call, i, concat("is ", what_is(object), " without memory of its own."));
  }
  set_memory(tensor, reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(source.data) + source.byte_offset));
}

void import_managed(Call& call, int i, PyObject* object, const dlpack::ManagedTensorVersioned* managed, bool output) {
  if (managed == nullptr) refuse(call, i, concat("is ", what_is(object), " that gave no tensor of DLPack."));
  if (managed->version.major != 1) refuse(call, i, "comes with an unknown version of DLPack.");
  if (output && (managed->flags & dlpack::kReadOnly)) refuse(call, i, "is read-only, but an output is written to.");
  if (output && (managed->flags & dlpack::kCopied)) {
    refuse(call, i, "comes as a copy of itself, but an output is written to in place.");
  }
  import_dltensor(call, i, object, managed->tensor);
}

}  // namespace

Dtype dlpack_dtype(const dlpack::DataType& type) {
  if (type.lanes != 1) return Dtype::kUndefined;
  switch (type.code) {
    case dlpack::kFloat:
      return type.bits == 32   ? Dtype::kFloat
             : type.bits == 16 ? Dtype::kFloat16
             : type.bits == 64 ? Dtype::kDouble
                               : Dtype::kUndefined;
    case dlpack::kBfloat:
      return type.bits == 16 ? Dtype::kBfloat16 : Dtype::kUndefined;
    case dlpack::kBool:
      return type.bits == 8 ? Dtype::kBool : Dtype::kUndefined;
    case dlpack::kInt:
      return type.bits == 64   ? Dtype::kInt64
             : type.bits == 32 ? Dtype::kInt32
             : type.bits == 16 ? Dtype::kInt16
             : type.bits == 8  ? Dtype::kInt8
                               : Dtype::kUndefined;
    case dlpack::kUint:
      return type.bits == 8    ? Dtype::kUint8
             : type.bits == 16 ? Dtype::kUint16
             : type.bits == 32 ? Dtype::kUint32
             : type.bits == 64 ? Dtype::kUint64
                               : Dtype::kUndefined;
    case dlpack::kComplex:
      return type.bits == 64    ? Dtype::kComplex64
             : type.bits == 128 ? Dtype::kComplex128
             : type.bits == 32  ? Dtype::kComplex32
                                : Dtype::kUndefined;
    default:
      return Dtype::kUndefined;
  }
}

dlpack::DataType dlpack_type(Dtype dtype) {
  const auto bits = static_cast<uint8_t>(8 * dtype_size(dtype));
  if (dtype == Dtype::kBfloat16) return {dlpack::kBfloat, bits, 1};
  return {dlpack::kFloat, bits, 1};
}

// There are few types and they live long, so the last eight answers are remembered.
const dlpack::ExchangeApi* exchange_api(PyTypeObject* type) {
  struct Known {
    PyTypeObject* type;
    const dlpack::ExchangeApi* api;
  };
  static std::array<Known, 8> known{};
  static size_t next = 0;
  for (const Known& entry : known) {
    if (entry.type == type) return entry.api;
  }
  const nb::object capsule =
      nb::getattr(nb::handle(reinterpret_cast<PyObject*>(type)), "__dlpack_c_exchange_api__", nb::none());
  const dlpack::ExchangeApi* api = nullptr;
  if (!capsule.is_none()) {
    api = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    if (api == nullptr) {
      PyErr_Clear();
    } else if (api->version.major != 1 || api->managed_from_object == nullptr) {
      api = nullptr;
    }
  } else if (is_torch_type(type)) {
    api = &older_torch_api();
  }
  Py_INCREF(type);  // while its address is remembered, no other type may get it
  Known& entry = known[next++ % known.size()];
  Py_XDECREF(std::exchange(entry, Known{type, api}).type);
  return api;
}

void import_exchange(Call& call, int i, PyObject* object, const dlpack::ExchangeApi& api, bool output,
                     std::vector<nb::object>& keep) {
  if (api.borrow_from_object != nullptr) {
    dlpack::Tensor borrowed;
    if (api.borrow_from_object(object, &borrowed) != 0) throw_python_error();
    return import_dltensor(call, i, object, borrowed);
  }
  dlpack::ManagedTensorVersioned* managed = nullptr;
  if (api.managed_from_object(object, &managed) != 0) throw_python_error();
  if (managed != nullptr) {
    keep.push_back(nb::capsule(managed, [](void* p) noexcept {
      auto* tensor = static_cast<dlpack::ManagedTensorVersioned*>(p);
      if (tensor->deleter != nullptr) tensor->deleter(tensor);
    }));
  }
  import_managed(call, i, object, managed, output);
}

void import_protocol(Call& call, int i, PyObject* object, bool output, std::vector<nb::object>& keep) {
  const nb::handle array(object);
  const std::string type = type_name(object);
  if (PyType_Check(object) || !nb::hasattr(array, "__dlpack__")) refuse_type(call, i, object);
  // JAX arrays are immutable, but DLPack describes them as writable.
  if (output && (type.starts_with("jax") || type.find(".jax") != std::string::npos)) {
    refuse(call, i, "is a JAX array, which is immutable, but an output is written to.");
  }
  nb::object capsule;
  try {
    if (nb::hasattr(array, "__dlpack_device__")) {
      int device;
      if (!nb::try_cast(nb::object(array.attr("__dlpack_device__")()[0]), device)) {
        refuse(call, i, concat("is ", what_is(object), " whose __dlpack_device__() gave no number."));
      }
      if (device != dlpack::kCpu && device != dlpack::kCudaHost && device != dlpack::kRocmHost) {
        refuse(call, i, concat("lies on a device (DLPack type ", device, "), but this build computes on the CPU."));
      }
    }
    try {
      capsule = array.attr("__dlpack__")(nb::arg("max_version") = nb::make_tuple(1, 0));
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_TypeError)) throw;  // an old producer without max_version
      capsule = array.attr("__dlpack__")();
    }
  } catch (nb::python_error& error) {
    refuse_unreadable(call, i, object, error);
  }
  // The capsule is kept and not consumed: its own destructor frees the tensor.
  keep.push_back(capsule);
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    const void* managed = PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned");
    return import_managed(call, i, object, static_cast<const dlpack::ManagedTensorVersioned*>(managed), output);
  }
  if (!PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    refuse(
        call, i,
        concat("is ", what_is(object), " whose __dlpack__() gave no capsule of DLPack, or one that was used already."));
  }
  const auto* managed = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  import_dltensor(call, i, object, managed->tensor);
}

}  // namespace descend::python
