// Results, as arrays of the same library as the arguments.
#pragma once

#include "bindings/dlpack.h"
#include "bindings/python.h"
#include "tensor/tensor.h"

namespace descend::python {

enum class Family : uint8_t { kNumpy, kTorch, kOther };

// Memory for a result. When it has been filled, finish() makes it an array of the family of `like`.
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

void bind_results(nb::module_& module);  // when the module is imported

}  // namespace descend::python
