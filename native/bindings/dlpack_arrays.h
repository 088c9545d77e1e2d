// Arrays of any library as tensors, by DLPack.
#pragma once

#include <vector>

#include "bindings/dlpack.h"
#include "bindings/python.h"
#include "operators/operator.h"

namespace descend::python {

Dtype dlpack_dtype(const dlpack::DataType& type);  // kUndefined for one that CANN does not know
dlpack::DataType dlpack_type(Dtype dtype);         // of a floating dtype

// DLPack's C functions for tensors of a type; null if the type has none. Not all of them need be there.
const dlpack::ExchangeApi* exchange_api(PyTypeObject* type);

// Describes an array as the tensor of parameter i: by the C functions, or by the methods __dlpack__ and
// __dlpack_device__. `keep` receives what must live as long as the tensor is used. Throws if no operator can take the
// array, or if an output must not be it.
void import_exchange(Call& call, int i, PyObject* object, const dlpack::ExchangeApi& api, bool output,
                     std::vector<nb::object>& keep);
void import_protocol(Call& call, int i, PyObject* object, bool output, std::vector<nb::object>& keep);

}  // namespace descend::python
