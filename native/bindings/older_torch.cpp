#include "bindings/older_torch.h"

#include <array>
#include <cstdint>

#include "bindings/python.h"
#include "tensor/tensor.h"

namespace descend::python {
namespace {

struct Named {
  nb::object dtype;
  dlpack::DataType type;
};

const std::array<Named, 13>& dtypes() {
  static const auto& all = *new std::array<Named, 13>([] {
    const nb::module_ torch = nb::module_::import_("torch");
    const auto named = [&](const char* name, uint8_t code, int bits) {
      return Named{torch.attr(name), {code, static_cast<uint8_t>(bits), 1}};
    };
    return std::array<Named, 13>{
        {named("float32", dlpack::kFloat, 32), named("bfloat16", dlpack::kBfloat, 16),
         named("float16", dlpack::kFloat, 16), named("float64", dlpack::kFloat, 64), named("bool", dlpack::kBool, 8),
         named("int64", dlpack::kInt, 64), named("int32", dlpack::kInt, 32), named("int16", dlpack::kInt, 16),
         named("int8", dlpack::kInt, 8), named("uint8", dlpack::kUint, 8), named("complex32", dlpack::kComplex, 32),
         named("complex64", dlpack::kComplex, 64), named("complex128", dlpack::kComplex, 128)}};
  }());
  return all;
}

dlpack::DataType type_of(nb::handle tensor) {
  const nb::object dtype = tensor.attr("dtype");
  for (const Named& known : dtypes()) {
    if (known.dtype.is(dtype)) return known.type;
  }
  return {};  // one that no operator takes
}

int32_t device_of(nb::handle tensor) {
  if (nb::cast<bool>(tensor.attr("is_cpu"))) return dlpack::kCpu;
  return nb::cast<int32_t>(tensor.attr("__dlpack_device__")()[0]);
}

// A rank is at most 64 in PyTorch.
struct Numbers {
  std::array<int64_t, 64> values;

  int32_t read(nb::handle tuple) {
    const size_t count = nb::len(tuple);
    if (count > values.size()) throw nb::value_error("the tensor has too many dimensions");
    for (size_t i = 0; i < count; ++i) values[i] = nb::cast<int64_t>(tuple[i]);
    return static_cast<int32_t>(count);
  }
};

int borrow(void* object, dlpack::Tensor* out) {
  static thread_local Numbers shape, strides;
  PyObject* const done = guarded([&]() -> PyObject* {
    const nb::handle tensor(static_cast<PyObject*>(object));
    const int32_t device = device_of(tensor);
    const int32_t rank = shape.read(tensor.attr("shape"));
    if (strides.read(tensor.attr("stride")()) != rank) throw nb::value_error("shape and strides differ in length");
    void* const data = reinterpret_cast<void*>(nb::cast<uintptr_t>(tensor.attr("data_ptr")()));
    *out = {data, {device, 0}, rank, type_of(tensor), shape.values.data(), strides.values.data(), 0};
    return Py_None;
  });
  return done == nullptr ? -1 : 0;
}

}  // namespace

const dlpack::ExchangeApi& older_torch_api() {
  static constexpr dlpack::ExchangeApi kApi{{1, 0}, nullptr, nullptr, nullptr, nullptr, borrow, nullptr};
  return kApi;
}

}  // namespace descend::python
