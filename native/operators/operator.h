// An operator: its contract as data, and its functions. And a call of an operator: what phase 1 is given.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "operators/argument.h"
#include "runtime/product.h"
#include "runtime/status.h"

namespace descend {

struct Call;
class Plan;

enum class Role : uint8_t { kInput, kOutput, kAttribute };

struct Parameter {
  const char* name;    // the documents' name: dxOut
  const char* python;  // dx_out
  Kind kind;
  Role role;
  bool optional;              // null is accepted
  const char* default_value;  // of the functional API, as Python source; null where it must be given
  bool keyword_only;          // in the functional API
  const char* shape;          // for readers
  const char* description;
  bool optional_on_host = false;     // null is accepted on host only
  bool optional_if_unused = false;   // null is accepted if the call ignores the parameter
  std::vector<const char*> taken{};  // of a string: the values that the operator takes; none: it reads none
  const char* c_type = nullptr;      // in C, where it is not the usual type of its kind
  int in_place_of = -1;              // of an output that C does not have: the input over which C writes it
};

// Parameters as most operators have them: required, and those that are read of one name in all languages.
inline Parameter input_of(const char* name, const char* shape, const char* description) {
  return {name, name, Kind::kTensor, Role::kInput, false, nullptr, false, shape, description};
}
inline Parameter number_of(const char* name, const char* default_value, const char* description) {
  return {name, name, Kind::kFloat, Role::kAttribute, false, default_value, false, "", description};
}
inline Parameter output_of(const char* name, const char* python, const char* shape, const char* description) {
  return {name, python, Kind::kTensor, Role::kOutput, false, nullptr, false, shape, description};
}

inline Parameter optional(Parameter parameter) {
  parameter.optional = true;
  return parameter;
}

inline Parameter optional_if_unused(Parameter parameter) {
  parameter.optional_if_unused = true;
  return parameter;
}

inline Parameter output_in_place_of(int input, const char* name, const char* python, const char* shape,
                                    const char* description) {
  Parameter output = output_of(name, python, shape, description);
  output.in_place_of = input;
  return output;
}

// One accepted combination: a set of dtypes for every tensor parameter, in order.
struct DtypeRow {
  ProductSet products;
  std::vector<DtypeSet> sets;
};

struct ErrorRule {
  Code code;
  const char* when;
};

// The statuses of an operator whose own rules have the code of an invalid argument.
inline std::vector<ErrorRule> errors_of(const char* null, const char* invalid) {
  return {{Code::kParamNullptr, null},
          {Code::kParamInvalid, invalid},
          {Code::kFindKernelError, "the product has no such operator"}};
}

struct Operator {
  const char* name;    // rms_norm_grad
  const char* c_name;  // aclnnRmsNormGrad
  const char* summary;
  const char* formula;
  const char* source;
  const char* notes;
  ProductSet products;
  std::vector<Parameter> parameters;
  std::vector<DtypeRow> dtypes;
  std::vector<ErrorRule> errors;

  // Fills in the metadata of outputs that were not given. The inputs are not checked yet. For host only.
  void (*infer)(Call& call);
  // Phase 1 after the checks that all operators share (prepare.h): the operator's own rules, then the steps.
  Status (*validate_and_plan)(const Call& call, Plan* plan);
  // Whether the call checks parameter i. It does not if an attribute switches the parameter off. Null: it checks all.
  bool (*counts)(const Call& call, int i) = nullptr;
  // Whether the call writes output i, or reads input i. If not, the tensor is checked, but not touched. Null: as
  // `counts`.
  bool (*computes)(const Call& call, int i) = nullptr;
  // Rules that the operator's page puts before the dtypes. Layouts are not checked yet. Null: there are none.
  Status (*validate_first)(const Call& call) = nullptr;

  // The C interface, which is written from this table.
  bool const_outputs = false;  // whether the documents declare outputs as const aclTensor*
  std::span<const Operator* const> (*variants)() = nullptr;  // C functions beside it that have rules of their own
};

// Which names messages use: the documents' in C, Python's in Python.
enum class Naming : uint8_t { kDocuments, kPython };

// Names for one call, in place of the operator's; null where it has none.
struct CallNames {
  const char* op = nullptr;
  std::array<const char*, kMaxParameters> parameters{};
};

struct Call {
  const Operator* op = nullptr;
  Product product = Product::kHost;
  Naming naming = Naming::kDocuments;
  const CallNames* names = nullptr;  // may be null; if set, used before those of `naming`; must outlive the call
  std::array<Argument, kMaxParameters> arguments;

  const Argument& operator[](int i) const { return arguments[i]; }
  Argument& operator[](int i) { return arguments[i]; }
  bool given(int i) const { return arguments[i].state == Argument::State::kGiven; }
  // Null if the argument is.
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

// Checks that tensor i has the shape of tensor `other`.
Status check_same_shape(const Call& call, int i, int other, Code code = Code::kParamInvalid);

// Checks that tensor i has no gaps; for pages that ask for it.
Status check_contiguous(const Call& call, int i, Code code = Code::kParamInvalid);

// Whether the call checks parameter i.
inline bool is_counted(const Call& call, int i) { return call.op->counts == nullptr || call.op->counts(call, i); }

// Whether the call reads or writes tensor i.
inline bool is_used(const Call& call, int i) {
  return call.op->computes != nullptr ? call.op->computes(call, i) : is_counted(call, i);
}

// Makes validate_and_plan of two functions: `validate` turns a call into a description of the problem, `make_plan`
// turns that into steps.
template <class Problem, Status (*validate)(const Call&, Problem*),
          void (*make_plan)(const Call&, const Problem&, Plan&)>
Status validate_then_plan(const Call& call, Plan* plan) {
  Problem problem;
  DESCEND_RETURN_IF_ERROR(validate(call, &problem));
  if (plan != nullptr) make_plan(call, problem, *plan);
  return {};
}

}  // namespace descend
