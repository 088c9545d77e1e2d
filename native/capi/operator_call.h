// The two phases of any operator, from C arguments.
#pragma once

#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "aclnn/aclnn_base.h"
#include "capi/record.h"
#include "capi/stream.h"
#include "operators/operator.h"
#include "runtime/product.h"

namespace descend::capi {

inline void read_list(HandleTable<Dims>& table, const void* handle, Argument& argument) {
  if (handle == nullptr) return;
  const bool alive = table.with(handle, [&](const Dims& list) { argument.list = list; });
  argument.state = alive ? Argument::State::kGiven : Argument::State::kForeign;
}

inline void read(Argument& argument, const aclTensor* handle) {
  if (handle == nullptr) return;
  const bool alive = state().tensors.with(handle, [&](const Tensor& tensor) { argument.tensor = tensor; });
  argument.state = alive ? Argument::State::kGiven : Argument::State::kForeign;
}
inline void read(Argument& argument, const aclIntArray* handle) { read_list(state().int_arrays, handle, argument); }
inline void read(Argument& argument, const aclBoolArray* handle) { read_list(state().bool_arrays, handle, argument); }
inline void read(Argument& argument, double value) {
  argument.real = value;
  argument.state = Argument::State::kGiven;
}
inline void read(Argument& argument, int64_t value) {
  argument.integer = value;
  argument.state = Argument::State::kGiven;
}
inline void read(Argument& argument, int32_t value) { read(argument, int64_t{value}); }
inline void read(Argument& argument, bool value) {
  argument.flag = value;
  argument.state = Argument::State::kGiven;
}

// A string, of which the operator takes the values `taken`, or reads none. It is read no further than the first
// difference from them: an invalid string may have no end.
inline void read_text(Argument& argument, const char* text, const std::vector<const char*>& taken) {
  if (text == nullptr) return;
  argument.state = Argument::State::kGiven;
  if (taken.empty()) return;
  size_t most = 0;
  for (const char* one : taken) {
    size_t same = 0;
    while (text[same] == one[same] && one[same] != '\0') ++same;
    if (text[same] == one[same]) {
      argument.text = one;
      return;
    }
    most = std::max(most, same);
  }
  argument.text.assign(text, most);
  if (text[most] != '\0') argument.text += std::string(1, text[most]) + "...";
}

// Argument i of a call.
template <class Value>
void read_argument(Call& call, int i, Value value) {
  if constexpr (std::is_same_v<Value, char*>) {
    read_text(call[i], value, call.op->parameters[i].taken);
  } else {
    read(call[i], value);
  }
}

// The boundary for operators, which have other codes for failures that are not the caller's fault.
template <class Body>
aclnnStatus operator_boundary(const Operator& op, Body body) noexcept {
  return boundary(op.c_name, body, Code::kRuntimeError, Code::kInner);
}

// The last call of this thread, accepted or not, which descendPortability asks about.
struct LastCall {
  std::shared_ptr<Executor> call;
  Status refusal;  // for a call by name whose arguments could not be read; `call` is null then
};
LastCall last_call();
void remember_call(LastCall call);

// What phase 1 does once it has read the arguments.
Status check_and_plan(Executor& made, const uint64_t* workspace_size, aclOpExecutor* const* executor);

// Phase 1: the arguments in the documents' order.
template <class... Arguments>
aclnnStatus get_workspace_size(const Operator& op, uint64_t* workspace_size, aclOpExecutor** executor,
                               Arguments... arguments) noexcept {
  return operator_boundary(op, [&]() -> Status {
    auto made = std::make_shared<Executor>();
    made->reset(op, Product::kHost, Naming::kDocuments);
    Call& call = made->call();
    int i = 0;
    (read_argument(call, i++, arguments), ...);
    for (; i < static_cast<int>(op.parameters.size()); ++i) call[i] = call[op.parameters[i].in_place_of];
    remember_call({made, {}});
    const Status answer = check_and_plan(*made, workspace_size, executor);
    if (is_recording()) made->set_meter(record_call(call, answer));
    DESCEND_RETURN_IF_ERROR(answer);
    const size_t bytes = made->workspace_bytes();
    *executor = static_cast<aclOpExecutor*>(state().executors.insert(std::move(made)));
    *workspace_size = bytes;
    return {};
  });
}

// Phase 2.
inline aclnnStatus launch(const Operator& op, void* workspace, uint64_t workspace_size, aclOpExecutor* executor,
                          aclrtStream stream) noexcept {
  return operator_boundary(op, [&]() -> Status {
    const auto fail = [&](Code code, const char* sentence) { return failure(code, op.c_name, ": ", sentence); };
    if (executor == nullptr) return fail(Code::kParamNullptr, "executor is null, but must be given.");
    const auto found = state().executors.find(executor);
    if (!found) {
      return fail(Code::kParamInvalid,
                  "executor has been used or destroyed already, or is not one. It serves one call, unless "
                  "aclSetAclOpExecutorRepeatable makes it repeatable.");
    }
    if (const Status status = require_initialized(); !status.ok()) {
      return fail(Code::kRuntimeError, status.sentence.c_str());
    }
    DESCEND_RETURN_IF_ERROR((*found)->launch(op, workspace, workspace_size, find_device_stream(stream).get()));
    if ((*found)->spent()) state().executors.remove(executor);
    return {};
  });
}

}  // namespace descend::capi
