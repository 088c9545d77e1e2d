// Executors: repeated runs, and new memory for them.
#include "aclnn/acl_meta.h"
#include "capi/objects.h"

using namespace descend;
using namespace descend::capi;

namespace {

Status find_executor(const aclOpExecutor* handle, std::shared_ptr<Executor>* executor) {
  if (handle == nullptr) return failure(Code::kParamNullptr, "executor is null, but must be given.");
  if (const auto composed = state().composed.find(handle)) {
    return failure(Code::kParamInvalid, "PyTorch computes ", (*composed)->function,
                   ", and the memory of such a call cannot be changed.");
  }
  const auto found = state().executors.find(handle);
  if (!found) return failure(Code::kParamInvalid, "executor has been used or destroyed already, or is not one.");
  *executor = *found;
  return {};
}

// The parameter behind tensor number `index` among the tensors that `selected` picks. -1 if the index is too large.
template <class Selected>
int parameter_at(const Operator& op, size_t index, Selected selected) {
  for (size_t i = 0; i < op.parameters.size(); ++i) {
    const Parameter& parameter = op.parameters[i];
    if (parameter.kind != Kind::kTensor || !selected(parameter.role)) continue;
    if (index-- == 0) return static_cast<int>(i);
  }
  return -1;
}

template <class Selected>
aclnnStatus set_address(const char* function, aclOpExecutor* handle, size_t index, const aclTensor* tensor, void* addr,
                        Selected selected) noexcept {
  return runtime_call(function, [&]() -> Status {
    std::shared_ptr<Executor> executor;
    DESCEND_RETURN_IF_ERROR(find_executor(handle, &executor));
    if (tensor == nullptr) return failure(Code::kParamNullptr, "tensor is null, but must be given.");
    const Call& call = executor->call();
    const int i = parameter_at(*call.op, index, selected);
    if (i < 0) {
      return failure(Code::kParamInvalid, "index is ", index, ", but ", call.operator_name(), " has fewer tensors.");
    }
    const Tensor* planned = call.tensor(i);
    if (planned == nullptr) {
      return failure(Code::kParamInvalid, call.name(i), ", at index ", index, ", was null in phase 1.");
    }
    const auto given = state().tensors.find(tensor);
    if (!given) return not_alive("tensor");
    if (given->dtype != planned->dtype || given->shape != planned->shape) {
      return failure(Code::kParamInvalid, "tensor has dtype ", dtype_name(given->dtype), " and shape ",
                     to_string(given->shape), ", but ", call.name(i), " had ", dtype_name(planned->dtype), " and ",
                     to_string(planned->shape), " in phase 1.");
    }
    // As in CANN, the tensor itself gets the new memory, too: a later first phase with it uses that.
    if (!state().tensors.with(tensor, [&](Tensor& moved) { moved.data = addr; })) return not_alive("tensor");
    const int input = call.op->parameters[i].in_place_of;
    const int first = input < 0 ? i : input;
    executor->set_address(first, addr);
    for (int other = 0; other < static_cast<int>(call.op->parameters.size()); ++other) {
      if (call.op->parameters[other].in_place_of == first) executor->set_address(other, addr);
    }
    return {};
  });
}

constexpr auto kInputs = [](Role role) { return role == Role::kInput; };
constexpr auto kOutputs = [](Role role) { return role == Role::kOutput; };
constexpr auto kAll = [](Role) { return true; };

}  // namespace

aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor* executor) {
  return runtime_call("aclSetAclOpExecutorRepeatable", [&]() -> Status {
    if (const auto composed = state().composed.find(executor)) {
      (*composed)->repeatable = true;
      return {};
    }
    std::shared_ptr<Executor> found;
    DESCEND_RETURN_IF_ERROR(find_executor(executor, &found));
    found->set_repeatable();
    return {};
  });
}

aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor* executor) {
  return runtime_call("aclDestroyAclOpExecutor", [&]() -> Status {
    const bool known = executor == nullptr || state().executors.remove(executor) || state().composed.remove(executor);
    return known ? Status{} : not_alive("executor");
  });
}

aclnnStatus aclSetInputTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor, void* addr) {
  return set_address("aclSetInputTensorAddr", executor, index, tensor, addr, kInputs);
}

aclnnStatus aclSetOutputTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor, void* addr) {
  return set_address("aclSetOutputTensorAddr", executor, index, tensor, addr, kOutputs);
}

aclnnStatus aclSetTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor, void* addr) {
  return set_address("aclSetTensorAddr", executor, index, tensor, addr, kAll);
}

aclnnStatus AclSetInputTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor, void* addr) {
  return aclSetInputTensorAddr(executor, index, tensor, addr);
}

aclnnStatus AclSetOutputTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor, void* addr) {
  return aclSetOutputTensorAddr(executor, index, tensor, addr);
}

aclnnStatus AclSetTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor, void* addr) {
  return aclSetTensorAddr(executor, index, tensor, addr);
}
