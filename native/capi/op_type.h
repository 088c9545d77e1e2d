// An operator type that can be called by name (aclop): which of our operators computes it, and which parameter of that
// operator each input, output and attribute is.
#pragma once

#include <string_view>
#include <vector>

#include "capi/attributes.h"
#include "operators/executor.h"

namespace descend::capi {

struct OpType;

// A call by name while it is turned into a call of the operator.
struct OpCall {
  const OpType& type;
  Call& call;
  std::vector<Argument> attributes;  // in the type's order
  Executor::Around around;
};

struct OpTensor {
  const char* name;
  int parameter;  // of the operator
  bool optional;
  DtypeSet numbers;  // the dtypes of an input that is read as a list of numbers; empty for other inputs
};

struct OpAttribute {
  const char* name;
  int parameter;  // of the operator; -1: read by `complete`
  Kind kind;
  bool required;
  Argument value;  // the default
};

struct OpType {
  std::string_view name;
  const Operator* op;
  std::vector<OpTensor> inputs = {}, outputs = {};
  std::vector<OpAttribute> attributes = {};
  // Fills in arguments that follow from others. Null: there are none.
  Status (*complete)(OpCall&) = nullptr;
  // Adds what is computed before and after the operator. The call is checked before this, and again after it.
  Status (*extend)(OpCall&) = nullptr;
  CallNames names = {};  // the type's names for the operator's parameters
};

}  // namespace descend::capi
