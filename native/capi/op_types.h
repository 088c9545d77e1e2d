// The types of CANN's operators that can be called by name (aclop): what each of their inputs, outputs and attributes
// is to the operator that serves it.
#pragma once

#include <string_view>
#include <vector>

#include "capi/attributes.h"
#include "operators/executor.h"

namespace descend::capi {

struct OpType;

// A call by name on its way to the operator's own.
struct OpCall {
  const OpType& type;
  Call& call;
  std::vector<Argument> attributes;  // as the type has them
  Executor::Around around;
};

struct OpTensor {
  const char* name;
  int parameter;  // the operator's
  bool optional;
  DtypeSet numbers;  // of an input whose values make a list of numbers; else none
};

struct OpAttribute {
  const char* name;
  int parameter;  // the operator's; -1: the type's `complete` reads it
  Kind kind;
  bool required;
  Argument value;  // where the program sets none
};

struct OpType {
  std::string_view name;
  const Operator* op;
  std::vector<OpTensor> inputs = {}, outputs = {};
  std::vector<OpAttribute> attributes = {};
  // Arguments that follow from others.
  Status (*complete)(OpCall&) = nullptr;
  // What is to be computed beside the operator; the call has been checked, and is once more.
  Status (*extend)(OpCall&) = nullptr;
  CallNames names = {};  // of the operator's parameters
};

// Null if there is none.
const OpType* find_op_type(std::string_view name);
// All names, for a sentence.
std::string op_type_names();

}  // namespace descend::capi
