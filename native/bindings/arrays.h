// Arrays of any library as tensors.
#pragma once

#include <vector>

#include "bindings/python.h"
#include "bindings/result.h"
#include "operators/operator.h"

namespace descend::python {

// To be called when the module is imported.
void bind_arrays(nb::module_& module);

// When an array's memory is used: at once, or later, when the array may have been given other memory.
enum class Use : uint8_t { kNow, kLater };

// Describes `object` as the tensor of parameter i. If more than the object itself must live as long as the tensor is
// used, `keep` receives it: one object at most. Throws if the object is no array on the CPU, or if an output must not
// be it.
Family read_array(Call& call, int i, PyObject* object, bool output, Use use, std::vector<nb::object>& keep);

// Whether a PyTorch tensor is still as read_array() described it.
bool is_still(const Tensor& tensor, PyObject* object);

// A tensor without memory, in place of an array, for calls that read metadata only.
struct TensorSpec {
  Tensor tensor;
};

// The same as read_array(), but also for a TensorSpec.
void read_metadata(Call& call, int i, PyObject* object, bool output, std::vector<nb::object>& keep);

// Tells PyTorch that an array's values have changed, if it is a PyTorch tensor.
void mark_written(PyObject* object, Family family);

}  // namespace descend::python
