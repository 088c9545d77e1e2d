// Tensors, arrays and executors.
#include "aclnn/acl_meta.h"

#include <vector>

#include "capi/state.h"

using namespace descend;
using namespace descend::capi;

namespace {

// Runs make() -> handle; null and a sentence when it throws.
template <class Make>
void* create(const char* function, Make make) noexcept {
  void* handle = nullptr;
  (void)boundary(function, [&]() -> Status {
    handle = make();
    return {};
  });
  return handle;
}

template <class Table>
aclnnStatus destroy(const char* function, const char* name, Table& table, const void* handle) noexcept {
  return boundary(function, [&]() -> Status {
    if (handle == nullptr || table.remove(handle)) return {};
    return failure(Code::kParamInvalid, name, " is not one that this library created, or has been destroyed already.");
  });
}

Dims dims_or_none(const int64_t* values, uint64_t count) { return values ? Dims(values, count) : Dims(); }

}  // namespace

aclTensor* aclCreateTensor(const int64_t* viewDims, uint64_t viewDimsNum, aclDataType dataType, const int64_t* stride,
                           int64_t offset, aclFormat format, const int64_t* storageDims, uint64_t storageDimsNum,
                           void* tensorData) {
  return static_cast<aclTensor*>(create("aclCreateTensor", [&] {
    Tensor tensor;
    tensor.dtype = static_cast<Dtype>(dataType);
    tensor.format = static_cast<Format>(format);
    tensor.shape = dims_or_none(viewDims, viewDimsNum);
    tensor.strides = stride ? Dims(stride, tensor.rank()) : contiguous_strides(tensor.shape);
    tensor.offset = offset;
    tensor.storage_shape = dims_or_none(storageDims, storageDimsNum);
    tensor.data = tensorData;
    return state().tensors.insert(std::move(tensor));
  }));
}

aclIntArray* aclCreateIntArray(const int64_t* value, uint64_t size) {
  return static_cast<aclIntArray*>(create("aclCreateIntArray", [&]() -> void* {
    if (value == nullptr && size > 0) {
      (void)report("aclCreateIntArray", failure(Code::kParamNullptr, "value is null, but size is ", size, "."));
      return nullptr;
    }
    return state().int_arrays.insert(dims_or_none(value, size));
  }));
}

aclBoolArray* aclCreateBoolArray(const bool* value, uint64_t size) {
  return static_cast<aclBoolArray*>(create("aclCreateBoolArray", [&]() -> void* {
    if (value == nullptr && size > 0) {
      (void)report("aclCreateBoolArray", failure(Code::kParamNullptr, "value is null, but size is ", size, "."));
      return nullptr;
    }
    const std::vector<int64_t> values(value, value + size);
    return state().bool_arrays.insert(Dims(values.data(), size));
  }));
}

aclnnStatus aclDestroyTensor(const aclTensor* tensor) {
  return destroy("aclDestroyTensor", "tensor", state().tensors, tensor);
}

aclnnStatus aclDestroyIntArray(const aclIntArray* array) {
  return destroy("aclDestroyIntArray", "array", state().int_arrays, array);
}

aclnnStatus aclDestroyBoolArray(const aclBoolArray* array) {
  return destroy("aclDestroyBoolArray", "array", state().bool_arrays, array);
}

aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor* executor) {
  return boundary("aclSetAclOpExecutorRepeatable", [&]() -> Status {
    if (executor == nullptr) return failure(Code::kParamNullptr, "executor is null, but must be given.");
    const auto found = state().executors.find(executor);
    if (!found) return failure(Code::kParamInvalid, "executor has been used or destroyed already, or is not one.");
    (*found)->set_repeatable();
    return {};
  });
}

aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor* executor) {
  return destroy("aclDestroyAclOpExecutor", "executor", state().executors, executor);
}
