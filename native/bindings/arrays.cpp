#include "bindings/arrays.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <new>

#include "bindings/dlpack_arrays.h"
#include "bindings/numpy_arrays.h"
#include "bindings/refusal.h"
#include "bindings/tensor_memory.h"
#include "bindings/torch_tensors.h"

namespace descend::python {

Family read_array(Call& call, int i, PyObject* object, bool output, Use use, std::vector<nb::object>& keep) {
  call[i].state = Argument::State::kGiven;
  if (is_numpy(object)) {
    import_numpy(call, i, object, output);
    return Family::kNumpy;
  }
  const bool from_torch = is_torch(object);
  try {
    if (from_torch) check_torch(call, i, object);
    if (const dlpack::ExchangeApi* api = exchange_api(Py_TYPE(object))) {
      import_exchange(call, i, object, *api, output, keep);
    } else {
      import_protocol(call, i, object, output, keep);
    }
    // A tensor that is given other memory drops its old storage, which the call still uses.
    if (from_torch && use == Use::kLater) keep.assign(1, nb::handle(object).attr("untyped_storage")());
  } catch (nb::python_error& error) {
    refuse_unreadable(call, i, object, error);
  }
  return from_torch ? Family::kTorch : Family::kOther;
}

bool is_still(const Tensor& tensor, PyObject* object) {
  const dlpack::ExchangeApi* api = exchange_api(Py_TYPE(object));
  if (api == nullptr || api->borrow_from_object == nullptr) return true;
  dlpack::Tensor now;
  if (api->borrow_from_object(object, &now) != 0) throw_python_error();
  const auto same = [&](const int64_t* numbers, const Dims& as) {
    return std::equal(as.begin(), as.end(), numbers, numbers + now.ndim);
  };
  const char* first = static_cast<const char*>(tensor.data) + tensor.offset * dtype_size(tensor.dtype);
  return static_cast<const char*>(now.data) + now.byte_offset == first && dlpack_dtype(now.dtype) == tensor.dtype &&
         same(now.shape, tensor.shape) && (now.strides == nullptr || same(now.strides, tensor.strides));
}

void read_metadata(Call& call, int i, PyObject* object, bool output, std::vector<nb::object>& keep) {
  TensorSpec* spec = nullptr;
  if (nb::try_cast(nb::handle(object), spec) && spec != nullptr) {
    call[i].state = Argument::State::kGiven;
    call[i].tensor = spec->tensor;
  } else {
    (void)read_array(call, i, object, output, Use::kNow, keep);
  }
}

void mark_written(PyObject* object, Family family) {
  if (family == Family::kTorch) mark_changed(object);
}

void bind_arrays(nb::module_& module) {
  load_numpy();
  bind_results(module);
  nb::class_<TensorSpec>(module, "TensorSpec", "A tensor without memory, for calls that read metadata only.")
      .def(
          "__init__",
          [](TensorSpec* self, const std::vector<int64_t>& shape, int dtype,
             const std::optional<std::vector<int64_t>>& strides, int format) {
            new (self) TensorSpec;
            Tensor& tensor = self->tensor;
            tensor.dtype = static_cast<Dtype>(dtype);
            tensor.format = static_cast<Format>(format);
            tensor.shape.assign(shape.data(), shape.size());
            tensor.strides = contiguous_strides(tensor.shape);
            tensor.storage_shape = tensor.shape;
            if (strides) {
              if (strides->size() != shape.size()) throw nb::value_error("strides and shape differ in length.");
              tensor.strides.assign(strides->data(), strides->size());
              set_storage(tensor);
            }
          },
          nb::arg("shape"), nb::arg("dtype"), nb::arg("strides").none() = nb::none(), nb::arg("format") = 2,
          "shape, CANN's number of the dtype, strides in elements, CANN's number of the format.");
}

}  // namespace descend::python
