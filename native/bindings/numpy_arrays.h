// NumPy arrays as tensors, and results as NumPy arrays.
#pragma once

#include "bindings/dlpack.h"
#include "bindings/python.h"
#include "operators/operator.h"

namespace descend::python {

void load_numpy();  // when the module is imported, before all others

bool is_numpy(PyObject* object);

// Describes an array as the tensor of parameter i. Throws if no operator can take it, or if an output must not be it.
void import_numpy(Call& call, int i, PyObject* array, bool output);

// An array that owns the memory.
nb::object numpy_from_managed(dlpack::ManagedTensorVersioned* managed, Dtype dtype);

}  // namespace descend::python
