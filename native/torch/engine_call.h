// A functional call of the engine with PyTorch's tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include "bindings/engine.h"

namespace descend::pytorch {

// To be called once, before the other functions of this header.
void set_engine(const Engine* engine);

// Sets the engine's number of threads to PyTorch's, if PyTorch's has changed since the last call.
void follow_threads();

// Throws c10::Error if the engine has no operator of this name.
const Operator& find_operator(const char* name);
// The number of a parameter, by its name in Python. Throws c10::Error if there is none.
int find_parameter(const Operator& op, std::string_view name);

// Memory for a result. Large results use pages that the engine keeps for reuse, small ones PyTorch's own memory. Throws
// std::bad_alloc if there is no memory.
at::Tensor allocate(at::IntArrayRef sizes, at::ScalarType dtype);

// One call: construct it, give the arguments, prepare(), give the results memory, run(). A thread can have only one
// call at a time.
class EngineCall {
 public:
  explicit EngineCall(const Operator& op);

  Call& call() { return call_; }
  Argument& operator[](int parameter) { return call_[parameter]; }

  // Gives a tensor. False if the engine does not take such a tensor. Throws ValueError if its storage is too small for
  // it.
  bool give(int parameter, const at::Tensor& tensor);
  // Gives a tensor whose elements are all the same number, which is stored once.
  void give_constant(int parameter, at::ScalarType dtype, at::IntArrayRef sizes, const void* number);
  void give(int parameter, double number);
  void give(int parameter, at::IntArrayRef list);

  // Checks the call, and infers shape and dtype of the results that were not given. False if the engine refuses the
  // call.
  bool prepare();
  // Memory for a result that was not given.
  at::Tensor allocate_result(int parameter);
  // False if the engine refuses the call. Throws std::bad_alloc if there is no memory.
  bool run();

 private:
  Executor& executor_;
  Call& call_;
};

}  // namespace descend::pytorch
