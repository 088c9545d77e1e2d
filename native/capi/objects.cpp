// Tensors, scalars, arrays and lists.
#include "capi/objects.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "aclnn/acl_meta.h"
#include "kernels/rows/convert.h"

using namespace descend;
using namespace descend::capi;

namespace {

// Creates a list of values. The result is null for a null list with a count above 0.
template <class Handle, class T, class Insert>
Handle* create_list(const char* function, const T* values, uint64_t size, Insert insert) noexcept {
  return create<Handle>(function, [&]() -> void* {
    if (values == nullptr && size > 0) {
      (void)report(function, failure(Code::kParamNullptr, "value is null, but size is ", size, "."));
      return nullptr;
    }
    if (size > std::vector<T>().max_size()) throw std::bad_alloc();  // values + size would wrap around
    return insert(std::vector<T>(values, values + size));
  });
}

Dims dims_or_none(const int64_t* values, uint64_t count) { return values ? Dims(values, count) : Dims(); }

// A tensor is created whatever its metadata; only a null list with a count above 0 cannot be read. Phase 1 checks the
// rest.
Status check_dims(const int64_t* viewDims, uint64_t viewDimsNum, const int64_t* storageDims, uint64_t storageDimsNum) {
  if (viewDims == nullptr && viewDimsNum > 0) {
    return failure(Code::kParamNullptr, "viewDims is null, but viewDimsNum is ", viewDimsNum, ".");
  }
  if (storageDims == nullptr && storageDimsNum > 0) {
    return failure(Code::kParamNullptr, "storageDims is null, but storageDimsNum is ", storageDimsNum, ".");
  }
  return {};
}

Tensor make_tensor(const int64_t* viewDims, uint64_t viewDimsNum, aclDataType dataType, const int64_t* stride,
                   int64_t offset, aclFormat format, const int64_t* storageDims, uint64_t storageDimsNum, void* data) {
  Tensor tensor;
  tensor.dtype = static_cast<Dtype>(dataType);
  tensor.format = static_cast<Format>(format);
  tensor.shape = dims_or_none(viewDims, viewDimsNum);
  tensor.strides = stride ? Dims(stride, tensor.rank()) : contiguous_strides(tensor.shape);
  tensor.offset = offset;
  tensor.storage_shape = dims_or_none(storageDims, storageDimsNum);
  tensor.data = data;
  return tensor;
}

aclnnStatus get_dims(const char* function, const aclTensor* tensor, Dims Tensor::* member, int64_t** dims,
                     uint64_t* count) noexcept {
  return get(function, "tensor", state().tensors, tensor, dims && count ? dims : nullptr, [&](const Tensor& found) {
    const Dims& values = found.*member;
    *dims = new int64_t[values.size()];  // the caller frees it with delete[]
    std::copy(values.begin(), values.end(), *dims);
    *count = values.size();
  });
}

// Destroys a list and all that is in it.
template <class Lists, class Elements>
aclnnStatus destroy_list(const char* function, Lists& lists, Elements& elements, const void* array) noexcept {
  return boundary(function, [&]() -> Status {
    if (array == nullptr) return {};
    const auto removed = lists.remove(array);
    if (!removed) return not_alive("array");
    for (const auto* element : *removed) elements.remove(element);
    return {};
  });
}

}  // namespace

aclTensor* aclCreateTensor(const int64_t* viewDims, uint64_t viewDimsNum, aclDataType dataType, const int64_t* stride,
                           int64_t offset, aclFormat format, const int64_t* storageDims, uint64_t storageDimsNum,
                           void* tensorData) {
  return create<aclTensor>("aclCreateTensor", [&]() -> void* {
    Status status = check_dims(viewDims, viewDimsNum, storageDims, storageDimsNum);
    if (!status.ok()) {
      (void)report("aclCreateTensor", std::move(status));
      return nullptr;
    }
    return state().tensors.insert(
        make_tensor(viewDims, viewDimsNum, dataType, stride, offset, format, storageDims, storageDimsNum, tensorData));
  });
}

aclnnStatus aclInitTensor(aclTensor* tensor, const int64_t* viewDims, uint64_t viewDimsNum, aclDataType dataType,
                          const int64_t* stride, int64_t offset, aclFormat format, const int64_t* storageDims,
                          uint64_t storageDimsNum, void* tensorDataAddr) {
  return runtime_call("aclInitTensor", [&]() -> Status {
    if (tensor == nullptr) return null_parameter("tensor");
    DESCEND_RETURN_IF_ERROR(check_dims(viewDims, viewDimsNum, storageDims, storageDimsNum));
    Tensor made = make_tensor(viewDims, viewDimsNum, dataType, stride, offset, format, storageDims, storageDimsNum,
                              tensorDataAddr);
    const bool alive = state().tensors.with(tensor, [&](Tensor& found) { found = std::move(made); });
    return alive ? Status{} : not_alive("tensor");
  });
}

aclScalar* aclCreateScalar(void* value, aclDataType dataType) {
  return create<aclScalar>("aclCreateScalar", [&]() -> void* {
    if (value == nullptr) {
      (void)report("aclCreateScalar", null_parameter("value"));
      return nullptr;
    }
    Scalar scalar;
    scalar.dtype = static_cast<Dtype>(dataType);
    std::memcpy(scalar.value.data(), value, static_cast<size_t>(dtype_size(scalar.dtype)));
    return state().scalars.insert(scalar);
  });
}

aclIntArray* aclCreateIntArray(const int64_t* value, uint64_t size) {
  return create_list<aclIntArray>("aclCreateIntArray", value, size, [](const std::vector<int64_t>& values) {
    return state().int_arrays.insert(Dims(values.data(), values.size()));
  });
}

aclFloatArray* aclCreateFloatArray(const float* value, uint64_t size) {
  return create_list<aclFloatArray>("aclCreateFloatArray", value, size, [](std::vector<float> values) {
    return state().float_arrays.insert(std::move(values));
  });
}

aclBoolArray* aclCreateBoolArray(const bool* value, uint64_t size) {
  return create_list<aclBoolArray>("aclCreateBoolArray", value, size, [](const std::vector<bool>& values) {
    const std::vector<int64_t> numbers(values.begin(), values.end());
    return state().bool_arrays.insert(Dims(numbers.data(), numbers.size()));
  });
}

aclTensorList* aclCreateTensorList(const aclTensor* const* value, uint64_t size) {
  return create_list<aclTensorList>("aclCreateTensorList", value, size, [](std::vector<const aclTensor*> values) {
    return state().tensor_lists.insert(std::move(values));
  });
}

aclScalarList* aclCreateScalarList(const aclScalar* const* value, uint64_t size) {
  return create_list<aclScalarList>("aclCreateScalarList", value, size, [](std::vector<const aclScalar*> values) {
    return state().scalar_lists.insert(std::move(values));
  });
}

aclnnStatus aclDestroyTensor(const aclTensor* tensor) {
  return destroy("aclDestroyTensor", "tensor", state().tensors, tensor);
}

aclnnStatus aclDestroyScalar(const aclScalar* scalar) {
  return destroy("aclDestroyScalar", "scalar", state().scalars, scalar);
}

aclnnStatus aclDestroyIntArray(const aclIntArray* array) {
  return destroy("aclDestroyIntArray", "array", state().int_arrays, array);
}

aclnnStatus aclDestroyFloatArray(const aclFloatArray* array) {
  return destroy("aclDestroyFloatArray", "array", state().float_arrays, array);
}

aclnnStatus aclDestroyBoolArray(const aclBoolArray* array) {
  return destroy("aclDestroyBoolArray", "array", state().bool_arrays, array);
}

aclnnStatus aclDestroyTensorList(const aclTensorList* array) {
  return destroy_list("aclDestroyTensorList", state().tensor_lists, state().tensors, array);
}

aclnnStatus aclDestroyScalarList(const aclScalarList* array) {
  return destroy_list("aclDestroyScalarList", state().scalar_lists, state().scalars, array);
}

aclnnStatus aclGetViewShape(const aclTensor* tensor, int64_t** viewDims, uint64_t* viewDimsNum) {
  return get_dims("aclGetViewShape", tensor, &Tensor::shape, viewDims, viewDimsNum);
}

aclnnStatus aclGetStorageShape(const aclTensor* tensor, int64_t** storageDims, uint64_t* storageDimsNum) {
  return get_dims("aclGetStorageShape", tensor, &Tensor::storage_shape, storageDims, storageDimsNum);
}

aclnnStatus aclGetViewStrides(const aclTensor* tensor, int64_t** stridesValue, uint64_t* stridesNum) {
  return get_dims("aclGetViewStrides", tensor, &Tensor::strides, stridesValue, stridesNum);
}

aclnnStatus aclGetViewOffset(const aclTensor* tensor, int64_t* offset) {
  return get("aclGetViewOffset", "tensor", state().tensors, tensor, offset,
             [&](const Tensor& found) { *offset = found.offset; });
}

aclnnStatus aclGetFormat(const aclTensor* tensor, aclFormat* format) {
  return get("aclGetFormat", "tensor", state().tensors, tensor, format,
             [&](const Tensor& found) { *format = static_cast<aclFormat>(found.format); });
}

aclnnStatus aclGetDataType(const aclTensor* tensor, aclDataType* dataType) {
  return get("aclGetDataType", "tensor", state().tensors, tensor, dataType,
             [&](const Tensor& found) { *dataType = static_cast<aclDataType>(found.dtype); });
}

aclnnStatus aclGetIntArraySize(const aclIntArray* array, uint64_t* size) {
  return get("aclGetIntArraySize", "array", state().int_arrays, array, size,
             [&](const Dims& found) { *size = found.size(); });
}

aclnnStatus aclGetFloatArraySize(const aclFloatArray* array, uint64_t* size) {
  return get("aclGetFloatArraySize", "array", state().float_arrays, array, size,
             [&](const std::vector<float>& found) { *size = found.size(); });
}

aclnnStatus aclGetBoolArraySize(const aclBoolArray* array, uint64_t* size) {
  return get("aclGetBoolArraySize", "array", state().bool_arrays, array, size,
             [&](const Dims& found) { *size = found.size(); });
}

aclnnStatus aclGetTensorListSize(const aclTensorList* tensorList, uint64_t* size) {
  return get("aclGetTensorListSize", "tensorList", state().tensor_lists, tensorList, size,
             [&](const auto& found) { *size = found.size(); });
}

aclnnStatus aclGetScalarListSize(const aclScalarList* scalarList, uint64_t* size) {
  return get("aclGetScalarListSize", "scalarList", state().scalar_lists, scalarList, size,
             [&](const auto& found) { *size = found.size(); });
}

aclnnStatus aclSetRawTensorAddr(aclTensor* tensor, void* addr) {
  return runtime_call("aclSetRawTensorAddr", [&]() -> Status {
    if (tensor == nullptr) return null_parameter("tensor");
    return state().tensors.with(tensor, [&](Tensor& found) { found.data = addr; }) ? Status{} : not_alive("tensor");
  });
}

aclnnStatus aclGetRawTensorAddr(const aclTensor* tensor, void** addr) {
  return get("aclGetRawTensorAddr", "tensor", state().tensors, tensor, addr,
             [&](const Tensor& found) { *addr = found.data; });
}

size_t aclDataTypeSize(aclDataType dataType) { return static_cast<size_t>(dtype_size(static_cast<Dtype>(dataType))); }

float aclFloat16ToFloat(aclFloat16 value) {
  float result;
  kernels::convert({}, kernels::Element::kFloat16, &value, kernels::Element::kFloat32, &result);
  return result;
}

aclFloat16 aclFloatToFloat16(float value) {
  aclFloat16 result;
  kernels::convert({}, kernels::Element::kFloat32, &value, kernels::Element::kFloat16, &result);
  return result;
}
