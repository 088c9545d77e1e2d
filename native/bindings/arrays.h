// Arrays of any library as tensors, and results of the caller's family.
#pragma once

#include <vector>

#include "bindings/dlpack.h"
#include "bindings/python.h"
#include "operators/call.h"

namespace descend::python {

enum class Family : uint8_t { kNumpy, kTorch, kOther };

// To be called when the module is imported.
void bind_arrays(nb::module_& module);

// When an array's memory is used: at once, or later, when the array may have been given other memory.
enum class Use : uint8_t { kNow, kLater };

// Describes `object` as the tensor of parameter i. `keep` receives what must live as long as the tensor is used beyond
// the object itself, one object at most. Throws for anything that is no array on the CPU, or that an output must not
// be.
Family read_array(Call& call, int i, PyObject* object, bool output, Use use, std::vector<nb::object>& keep);

// Whether what read_array() told of a PyTorch tensor is still so.
bool is_still(const Tensor& tensor, PyObject* object);

// Throws where the call would lose gradients of what is given as a number, which may be a tensor.
void check_number(const Call& call, int i, PyObject* object);

// Throws where PyTorch is tracing.
void check_untraced(const Call& call);

// Sets data, offset and storage from the address of element [0, ..., 0], so that negative strides stay inside.
void set_memory(Tensor& tensor, void* first_element);

// A tensor without memory: what an array would be, for calls that read metadata only.
struct TensorSpec {
  Tensor tensor;
};

// The same for a TensorSpec too.
void read_metadata(Call& call, int i, PyObject* object, bool output, std::vector<nb::object>& keep);

// Tells PyTorch that a tensor's values have changed, so that autograd notices a stale saved tensor.
void mark_written(PyObject* object, Family family);

// Memory for a result, which becomes an array of the family of `like` once it has been filled.
class Result {
 public:
  Result(Family family, PyObject* like) : family_(family), like_(like) {}
  ~Result();
  Result(const Result&) = delete;
  Result& operator=(const Result&) = delete;
  Result(Result&& other) noexcept;

  [[nodiscard]] bool allocate(Tensor* tensor);  // sets tensor->data; false when there is no memory
  nb::object finish();                          // the array

 private:
  Family family_;
  PyObject* like_;  // borrowed
  dlpack::ManagedTensorVersioned* managed_ = nullptr;
};

}  // namespace descend::python
