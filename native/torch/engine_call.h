// A functional call of the engine with PyTorch's tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include "bindings/engine.h"

namespace descend::pytorch {

// What the other functions of this header need, once.
void set_engine(const Engine* engine);

// PyTorch's number of threads, which the engine follows once it is changed.
void follow_threads();

// Throws c10::Error if the engine has no operator of this name.
const Operator& find_operator(const char* name);
// The number of a parameter, by its name in Python. Throws c10::Error if there is none.
int find_parameter(const Operator& op, std::string_view name);

// A result of the engine: large ones take the engine's warm pages, small ones PyTorch's own memory. Throws
// std::bad_alloc.
at::Tensor allocate(at::IntArrayRef sizes, at::ScalarType dtype);

// Begin, give the arguments, prepare, give the results memory, run. A thread has one call at a time.
class EngineCall {
 public:
  explicit EngineCall(const Operator& op);

  Call& call() { return call_; }
  Argument& operator[](int parameter) { return call_[parameter]; }

  // Gives a tensor. False if it is none that the engine takes. Throws ValueError if its storage is too small for it.
  bool give(int parameter, const at::Tensor& tensor);
  // Gives one number that stands for a whole tensor.
  void give_constant(int parameter, at::ScalarType dtype, at::IntArrayRef sizes, const void* number);
  void give(int parameter, double number);
  void give(int parameter, at::IntArrayRef list);

  // Checks the call. Results that were not given get their metadata.
  bool prepare();
  // Memory for a result that was not given.
  at::Tensor allocate_result(int parameter);
  // False if the engine refuses. Throws std::bad_alloc.
  bool run();

 private:
  Executor& executor_;
  Call& call_;
};

}  // namespace descend::pytorch
