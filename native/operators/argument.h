// One argument of a call, independent of C handles and Python objects.
#pragma once

#include <cstdint>
#include <string>

#include "tensor/tensor.h"

namespace descend {

inline constexpr int kMaxParameters = 18;

enum class Kind : uint8_t { kTensor, kIntArray, kBoolArray, kInt, kFloat, kBool, kString };

struct Argument {
  enum class State : uint8_t {
    kNull,
    kGiven,
    kForeign,  // a handle that names no object
    kUnread,   // not null, but could not be read; the reader has the reason
  };
  State state = State::kNull;
  bool flag = false;
  int64_t integer = 0;
  double real = 0;
  Tensor tensor;
  Dims list;  // the values of an int or bool array
  std::string text;
};

}  // namespace descend
