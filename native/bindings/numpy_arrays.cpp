#include "bindings/numpy_arrays.h"

#include <numpy/arrayobject.h>

#include <span>

#include "bindings/refusal.h"
#include "bindings/tensor_memory.h"

namespace descend::python {
namespace {

int bfloat16_number = -1;  // NumPy's number of the dtype of ml_dtypes
PyObject* bfloat16_descr = nullptr;
PyObject* masked_array_type = nullptr;

Dtype numpy_dtype(int number) {
  switch (number) {
    case NPY_FLOAT:
      return Dtype::kFloat;
    case NPY_HALF:
      return Dtype::kFloat16;
    case NPY_DOUBLE:
      return Dtype::kDouble;
    case NPY_BOOL:
      return Dtype::kBool;
    case NPY_INT8:
      return Dtype::kInt8;
    case NPY_INT16:
      return Dtype::kInt16;
    case NPY_INT32:
      return Dtype::kInt32;
    case NPY_INT64:
      return Dtype::kInt64;
    case NPY_UINT8:
      return Dtype::kUint8;
    case NPY_UINT16:
      return Dtype::kUint16;
    case NPY_UINT32:
      return Dtype::kUint32;
    case NPY_UINT64:
      return Dtype::kUint64;
    case NPY_COMPLEX64:
      return Dtype::kComplex64;
    case NPY_COMPLEX128:
      return Dtype::kComplex128;
    default:
      return number == bfloat16_number ? Dtype::kBfloat16 : Dtype::kUndefined;
  }
}

}  // namespace

void load_numpy() {
  if (_import_array() < 0) throw nb::python_error();
  const nb::object bfloat16 =
      nb::module_::import_("numpy").attr("dtype")(nb::module_::import_("ml_dtypes").attr("bfloat16"));
  bfloat16_number = reinterpret_cast<PyArray_Descr*>(bfloat16.ptr())->type_num;
  bfloat16_descr = nb::object(bfloat16).release().ptr();
  masked_array_type = nb::object(nb::module_::import_("numpy").attr("ma").attr("MaskedArray")).release().ptr();
}

bool is_numpy(PyObject* object) { return PyArray_Check(object); }

void import_numpy(Call& call, int i, PyObject* object, bool output) {
  auto* const array = reinterpret_cast<PyArrayObject*>(object);
  Tensor& tensor = call[i].tensor;
  tensor.dtype = numpy_dtype(PyArray_TYPE(array));
  if (tensor.dtype == Dtype::kUndefined) {
    refuse(call, i,
           "has dtype " + utf8(nb::str(nb::handle(reinterpret_cast<PyObject*>(PyArray_DESCR(array)))).ptr()) +
               ", which no operator takes.");
  }
  if (!PyArray_CheckExact(object) && PyObject_IsInstance(object, masked_array_type) == 1) {
    refuse(call, i, "is a masked array, whose mask would be ignored; pass its data.");
  }
  if (PyArray_ISBYTESWAPPED(array)) refuse(call, i, "is byte-swapped; convert it to the machine's byte order first.");
  if (output && !PyArray_ISWRITEABLE(array)) refuse(call, i, "is read-only, but an output is written to.");
  const int rank = PyArray_NDIM(array);
  const int64_t size = dtype_size(tensor.dtype);
  static_assert(sizeof(npy_intp) == sizeof(int64_t));
  tensor.shape.assign(reinterpret_cast<const int64_t*>(PyArray_DIMS(array)), rank);
  tensor.strides.assign(reinterpret_cast<const int64_t*>(PyArray_STRIDES(array)), rank);
  for (int64_t& stride : std::span(tensor.strides.data(), rank)) {
    if (stride % size != 0) refuse(call, i, "has strides that are not multiples of its element size.");
    stride /= size;
  }
  tensor.format = Format::kND;
  set_memory(tensor, PyArray_DATA(array));
}

nb::object numpy_from_managed(dlpack::ManagedTensorVersioned* managed, Dtype dtype) {
  PyArray_Descr* descr;
  if (dtype == Dtype::kBfloat16) {
    descr = reinterpret_cast<PyArray_Descr*>(Py_NewRef(bfloat16_descr));
  } else {
    descr = PyArray_DescrFromType(dtype == Dtype::kFloat ? NPY_FLOAT : dtype == Dtype::kDouble ? NPY_DOUBLE : NPY_HALF);
  }
  nb::object base = nb::capsule(managed, [](void* p) noexcept {
    auto* tensor = static_cast<dlpack::ManagedTensorVersioned*>(p);
    tensor->deleter(tensor);
  });
  nb::object array = nb::steal(PyArray_NewFromDescr(&PyArray_Type, descr, managed->tensor.ndim,
                                                    reinterpret_cast<const npy_intp*>(managed->tensor.shape), nullptr,
                                                    managed->tensor.data, NPY_ARRAY_CARRAY, nullptr));
  if (!array.is_valid()) throw nb::python_error();
  if (PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(array.ptr()), base.release().ptr()) != 0) {
    throw nb::python_error();
  }
  return array;
}

}  // namespace descend::python
