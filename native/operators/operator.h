// What an operator is: its contract as data, and the three functions that act on a call.
#pragma once

#include <span>
#include <vector>

#include "operators/call.h"
#include "operators/plan.h"

namespace descend {

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
  bool optional_on_host = false;    // null is accepted there only
  bool optional_if_unused = false;  // null is accepted where the parameter does not count
};

// One accepted combination: a set of dtypes for every tensor parameter, in order.
struct DtypeRow {
  ProductSet products;
  std::vector<DtypeSet> sets;
};

struct ErrorRule {
  Code code;
  const char* when;
};

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

  // Fills the metadata of outputs that were not given, from inputs that may break any rule (host only).
  void (*infer)(Call& call);
  // Phase 1 after the checks that all operators share (prepare): the page's own rules, then the steps.
  Status (*validate_and_plan)(const Call& call, Plan* plan);
  // Whether parameter i counts in this call: not if an attribute switches it off. Null: all count.
  bool (*counts)(const Call& call, int i) = nullptr;
  // Whether output i is computed, or input i read, in this call; one that is not is checked all the same, but not
  // touched. Null: as counts.
  bool (*computes)(const Call& call, int i) = nullptr;
  // What the operator's page puts before the dtypes; layouts are not checked yet. Null: nothing.
  Status (*validate_first)(const Call& call) = nullptr;
};

// Whether parameter i counts in this call.
inline bool is_counted(const Call& call, int i) { return call.op->counts == nullptr || call.op->counts(call, i); }

// Whether tensor i is written or read in this call.
inline bool is_used(const Call& call, int i) {
  return call.op->computes != nullptr ? call.op->computes(call, i) : is_counted(call, i);
}

// Phase 1: checks the whole contract in the documented order and, where `plan` is not null, fills it. Of an argument
// that could not be read, the failure has no sentence.
Status prepare(const Call& call, Plan* plan);

// Whether the plan that prepare() has made for one call is what it would make for another: the arguments are the same,
// and the tensors, wherever they now lie, as well apart.
bool holds(const Plan& plan, const Call& made_for, const Call& call);

// All operators; adding one is a line in registry.cpp.
std::span<const Operator* const> operators();
const Operator* find_operator(std::string_view name);  // by either name; null if there is none

// Two functions make an operator's third: `validate` turns a call into a plain problem, `plan` the problem into steps.
template <class Problem, Status (*validate)(const Call&, Problem*),
          void (*make_plan)(const Call&, const Problem&, Plan&)>
Status validate_then_plan(const Call& call, Plan* plan) {
  Problem problem;
  DESCEND_RETURN_IF_ERROR(validate(call, &problem));
  if (plan != nullptr) make_plan(call, problem, *plan);
  return {};
}

}  // namespace descend
