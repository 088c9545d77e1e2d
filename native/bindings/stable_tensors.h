// Tensors on their way through PyTorch's stable C interface: the arguments of a kernel and its results. All functions
// here need an interface that load() has found, and throw PyTorch's sentence where PyTorch fails.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "bindings/stable_torch.h"
#include "tensor/tensor.h"

namespace descend::stable_torch {

inline const Functions& torch() { return *functions(); }

void check_torch(Error error);

template <class T>
T as(Value value) {
  T result;
  std::memcpy(&result, &value, sizeof result);
  return result;
}

template <class T>
Value to_value(T object) {
  Value value = 0;
  std::memcpy(&value, &object, sizeof object);
  return value;
}

// A tensor argument. It is defined, and one that the engine takes, if `served`.
struct Input {
  Dtype dtype = Dtype::kUndefined;
  Dims shape, strides;
  void* data = nullptr;
  bool served = false;

  Input(const char* name, Handle handle);

  bool is_like(const Input& other) const {
    return served && dtype == other.dtype &&
           std::equal(shape.begin(), shape.end(), other.shape.begin(), other.shape.end());
  }
};

std::optional<Input> optional_input(const char* name, Value argument);

// The list that an argument is.
struct Numbers {
  static constexpr size_t kMost = Tensor::kMaxRank;
  std::array<int64_t, kMost> values{};
  size_t count = 0;
  bool fits = true;

  explicit Numbers(Value argument);
};

// Where a result's memory is from.
enum class Memory {
  kPytorchs,  // Programs may resize it: some free the results of norms until the gradient, and compute them again.
  kKept,      // From kPageResult on from the engine's pages, which are warm. PyTorch cannot resize it.
};

// A result on its way to PyTorch.
class Result {
 public:
  Result();  // a tensor that is not defined
  Result(const Dims& shape, Dtype dtype, Memory memory);
  Result(Result&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Result& operator=(Result&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Result() {
    if (handle_ != nullptr) (void)torch().aoti_torch_delete_tensor_object(handle_);
  }

  void* data() const;
  Value release() { return to_value(std::exchange(handle_, nullptr)); }

 private:
  Handle handle_ = nullptr;
};

}  // namespace descend::stable_torch
