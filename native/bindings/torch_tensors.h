// What DLPack does not report about a PyTorch tensor. PyTorch is never imported here: if the program has not imported
// it, no object can be its tensor.
#pragma once

#include "bindings/python.h"
#include "operators/operator.h"

namespace descend::python {

bool is_torch_type(PyTypeObject* type);
bool is_torch(PyObject* object);

// Throws if a PyTorch tensor cannot be an argument: if the call would lose its gradient or its tangent, or if DLPack
// would describe other values than it has.
void check_torch(const Call& call, int i, PyObject* object);

// An argument that is a number may be given as a tensor. Throws if the call would lose its gradient or its tangent.
void check_number(const Call& call, int i, PyObject* object);

// Throws if PyTorch is tracing.
void check_untraced(const Call& call);

// Tells PyTorch that a tensor's values have changed, so that autograd notices if it had saved the old ones.
void mark_changed(PyObject* tensor);

}  // namespace descend::python
