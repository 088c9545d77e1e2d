// The rows of the table of operator types are built by name, and checked against the operator's own table.
#pragma once

#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "capi/op_type.h"

namespace descend::capi {

// The operator's parameter with this name in its document.
inline int find_parameter(const Operator& op, std::string_view name) {
  for (size_t i = 0; i < op.parameters.size(); ++i) {
    if (name == op.parameters[i].name) return static_cast<int>(i);
  }
  std::abort();  // a mistake in the table
}

// Builds one row of the table of types. Inputs and outputs have the order of the type's public definition.
class OpTypeRow {
 public:
  OpTypeRow(const char* name, const Operator& op) : type_{.name = name, .op = &op} { type_.names.op = name; }

  // A type whose names are Python's, with the operator's own order and defaults.
  static OpTypeRow of_table(const char* name, const Operator& op) {
    static std::list<std::string> outputs;
    OpTypeRow row(name, op);
    for (const Parameter& p : op.parameters) {
      if (p.role == Role::kInput) {
        row.tensor(row.type_.inputs, p.python, p.name, p.optional);
      } else if (p.role == Role::kOutput) {
        outputs.emplace_back(p.python, std::strlen(p.python) - std::strlen("_out"));
        row.output(outputs.back().c_str(), p.name);
      } else {
        row.attribute(p.python, p.name, p.kind, p.default_value == nullptr, default_of(p));
      }
    }
    return row;
  }

  OpTypeRow& input(const char* name, const char* parameter) { return tensor(type_.inputs, name, parameter, false); }
  OpTypeRow& optional_input(const char* name, const char* parameter) {
    return tensor(type_.inputs, name, parameter, true);
  }
  OpTypeRow& numbers(const char* name, const char* parameter, DtypeSet dtypes, bool optional) {
    return tensor(type_.inputs, name, parameter, optional, dtypes);
  }
  OpTypeRow& output(const char* name, const char* parameter) { return tensor(type_.outputs, name, parameter, false); }
  OpTypeRow& optional_output(const char* name, const char* parameter) {
    return tensor(type_.outputs, name, parameter, true);
  }

  OpTypeRow& required_integer(const char* name, const char* parameter) {
    return attribute(name, parameter, Kind::kInt, true, {});
  }
  OpTypeRow& integer(const char* name, const char* parameter, int64_t value) {
    return attribute(name, parameter, Kind::kInt, false, with(&Argument::integer, value));
  }
  OpTypeRow& real(const char* name, const char* parameter, float value) {
    return attribute(name, parameter, Kind::kFloat, false, with(&Argument::real, double{value}));
  }
  OpTypeRow& flag(const char* name, const char* parameter, bool value) {
    return attribute(name, parameter, Kind::kBool, false, with(&Argument::flag, value));
  }
  OpTypeRow& text(const char* name, const char* parameter, const char* value) {
    return attribute(name, parameter, Kind::kString, false, with(&Argument::text, std::string(value)));
  }
  OpTypeRow& integers(const char* name, const char* parameter, std::initializer_list<int64_t> values) {
    return attribute(name, parameter, Kind::kIntArray, false, with(&Argument::list, Dims(values)));
  }
  OpTypeRow& flags(const char* name, const char* parameter, std::initializer_list<int64_t> values) {
    return attribute(name, parameter, Kind::kBoolArray, false, with(&Argument::list, Dims(values)));
  }

  // `complete` makes the operator's parameter of the last attribute, by whose name sentences call it.
  OpTypeRow& makes(const char* parameter) {
    type_.names.parameters[find_parameter(*type_.op, parameter)] = type_.attributes.back().name;
    return *this;
  }
  OpTypeRow& complete(Status (*function)(OpCall&)) {
    type_.complete = function;
    return *this;
  }
  OpTypeRow& extend(Status (*function)(OpCall&)) {
    type_.extend = function;
    return *this;
  }
  operator OpType() const { return type_; }

 private:
  // The table has it as Python source; the type has numbers as float.
  static Argument default_of(const Parameter& p) {
    if (p.default_value == nullptr) return {};
    const std::string text = p.default_value;
    switch (p.kind) {
      case Kind::kInt:
        return with(&Argument::integer, int64_t{std::strtoll(text.c_str(), nullptr, 10)});
      case Kind::kFloat:
        return with(&Argument::real, double{std::strtof(text.c_str(), nullptr)});
      case Kind::kBool:
        return with(&Argument::flag, text == "True");
      case Kind::kString:
        return with(&Argument::text, text.substr(1, text.size() - 2));  // without its quotes
      default:
        std::abort();  // no type has a default of this kind
    }
  }
  template <class T>
  static Argument with(T Argument::* member, T value) {
    Argument argument;
    argument.*member = std::move(value);
    return argument;
  }
  OpTypeRow& tensor(std::vector<OpTensor>& list, const char* name, const char* parameter, bool optional,
                    DtypeSet numbers = {}) {
    list.push_back({name, find_parameter(*type_.op, parameter), optional, numbers});
    type_.names.parameters[list.back().parameter] = name;
    return *this;
  }
  OpTypeRow& attribute(const char* name, const char* parameter, Kind kind, bool required, Argument value) {
    const int i = parameter == nullptr ? -1 : find_parameter(*type_.op, parameter);
    type_.attributes.push_back({name, i, kind, required, std::move(value)});
    if (i >= 0) type_.names.parameters[i] = name;
    return *this;
  }

  OpType type_;
};

}  // namespace descend::capi
