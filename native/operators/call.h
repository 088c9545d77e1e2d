// One call of an operator's first phase: its arguments, already free of any language's objects.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "runtime/product.h"
#include "runtime/status.h"
#include "tensor/tensor.h"

namespace descend {

inline constexpr int kMaxParameters = 16;

enum class Kind : uint8_t { kTensor, kIntArray, kBoolArray, kInt, kFloat, kBool, kString };

struct Argument {
  enum class State : uint8_t {
    kNull,
    kGiven,
    kForeign,  // a handle that names nothing alive
    kUnread,   // not null, but its reader could not make it out, and knows why
  };
  State state = State::kNull;
  bool flag = false;
  int64_t integer = 0;
  double real = 0;
  Tensor tensor;
  Dims list;  // of an int or bool array
  std::string text;
};

struct Operator;

// Which names sentences use: the documents' in C, Python's in Python.
enum class Naming : uint8_t { kDocuments, kPython };

// A call's own names, in place of the operator's; null where it has none.
struct CallNames {
  const char* op = nullptr;
  std::array<const char*, kMaxParameters> parameters{};
};

struct Call {
  const Operator* op = nullptr;
  Product product = Product::kHost;
  Naming naming = Naming::kDocuments;
  const CallNames* names = nullptr;  // where set, they go before those of `naming`; they outlive the call
  std::array<Argument, kMaxParameters> arguments;

  const Argument& operator[](int i) const { return arguments[i]; }
  Argument& operator[](int i) { return arguments[i]; }
  bool given(int i) const { return arguments[i].state == Argument::State::kGiven; }
  // Null where the argument is.
  const Tensor* tensor(int i) const { return given(i) ? &arguments[i].tensor : nullptr; }
  bool on_host() const { return product == Product::kHost; }

  const char* name(int i) const;  // the parameter's name in this call's language
  const char* operator_name() const;

  // A failure of this call: "<operator>: <parts>".
  template <class... Parts>
  Status fail(Code code, const Parts&... parts) const {
    return failure(code, operator_name(), ": ", parts...);
  }
};

}  // namespace descend
