// What programs keep beside tensors: buffers with their size, descriptions of tensors.
#include <algorithm>

#include "acl/acl_base.h"
#include "capi/meta.h"

using namespace descend;
using namespace descend::capi;

namespace {

// Elements of a description, times `each`; 0 where that is not known, or more than size_t counts.
size_t count(const TensorDesc& desc, size_t each) {
  size_t product = each;
  for (const int64_t length : desc.shape) {
    if (length < 0 || __builtin_mul_overflow(product, static_cast<size_t>(length), &product)) return 0;
  }
  return product;
}

}  // namespace

aclDataBuffer* aclCreateDataBuffer(void* data, size_t size) {
  return create<aclDataBuffer>("aclCreateDataBuffer",
                               [&] { return state().data_buffers.insert(DataBuffer{data, size}); });
}

aclError aclDestroyDataBuffer(const aclDataBuffer* dataBuffer) {
  return destroy("aclDestroyDataBuffer", "dataBuffer", state().data_buffers, dataBuffer);
}

aclError aclUpdateDataBuffer(aclDataBuffer* dataBuffer, void* data, size_t size) {
  return runtime_call("aclUpdateDataBuffer", [&]() -> Status {
    if (dataBuffer == nullptr) return null_argument("dataBuffer");
    const bool alive = state().data_buffers.with(dataBuffer, [&](DataBuffer& found) { found = {data, size}; });
    return alive ? Status{} : not_alive("dataBuffer");
  });
}

void* aclGetDataBufferAddr(const aclDataBuffer* dataBuffer) {
  void* address = nullptr;
  (void)get("aclGetDataBufferAddr", "dataBuffer", state().data_buffers, dataBuffer, &address,
            [&](const DataBuffer& found) { address = found.data; });
  return address;
}

uint32_t aclGetDataBufferSize(const aclDataBuffer* dataBuffer) {
  return static_cast<uint32_t>(std::min<size_t>(aclGetDataBufferSizeV2(dataBuffer), UINT32_MAX));
}

size_t aclGetDataBufferSizeV2(const aclDataBuffer* dataBuffer) {
  size_t size = 0;
  (void)get("aclGetDataBufferSizeV2", "dataBuffer", state().data_buffers, dataBuffer, &size,
            [&](const DataBuffer& found) { size = found.size; });
  return size;
}

aclTensorDesc* aclCreateTensorDesc(aclDataType dataType, int numDims, const int64_t* dims, aclFormat format) {
  return create<aclTensorDesc>("aclCreateTensorDesc", [&]() -> void* {
    if (numDims < 0 || (dims == nullptr && numDims > 0)) {
      (void)report("aclCreateTensorDesc",
                   numDims < 0 ? failure(Code::kInvalidParam, "numDims is ", numDims, ", but must be at least 0.")
                               : failure(Code::kInvalidParam, "dims is null, but numDims is ", numDims, "."));
      return nullptr;
    }
    return state().tensor_descs.insert(TensorDesc{dataType, format, Dims(dims, static_cast<size_t>(numDims))});
  });
}

void aclDestroyTensorDesc(const aclTensorDesc* desc) {
  (void)destroy("aclDestroyTensorDesc", "desc", state().tensor_descs, desc);
}

aclDataType aclGetTensorDescType(const aclTensorDesc* desc) {
  aclDataType dtype = ACL_DT_UNDEFINED;
  (void)get("aclGetTensorDescType", "desc", state().tensor_descs, desc, &dtype,
            [&](const TensorDesc& found) { dtype = found.dtype; });
  return dtype;
}

aclFormat aclGetTensorDescFormat(const aclTensorDesc* desc) {
  aclFormat format = ACL_FORMAT_UNDEFINED;
  (void)get("aclGetTensorDescFormat", "desc", state().tensor_descs, desc, &format,
            [&](const TensorDesc& found) { format = found.format; });
  return format;
}

size_t aclGetTensorDescSize(const aclTensorDesc* desc) {
  size_t bytes = 0;
  (void)get("aclGetTensorDescSize", "desc", state().tensor_descs, desc, &bytes,
            [&](const TensorDesc& found) { bytes = count(found, aclDataTypeSize(found.dtype)); });
  return bytes;
}

size_t aclGetTensorDescElementCount(const aclTensorDesc* desc) {
  size_t elements = 0;
  (void)get("aclGetTensorDescElementCount", "desc", state().tensor_descs, desc, &elements,
            [&](const TensorDesc& found) { elements = count(found, 1); });
  return elements;
}

size_t aclGetTensorDescNumDims(const aclTensorDesc* desc) {
  size_t rank = 0;
  (void)get("aclGetTensorDescNumDims", "desc", state().tensor_descs, desc, &rank,
            [&](const TensorDesc& found) { rank = found.shape.size(); });
  return rank;
}

int64_t aclGetTensorDescDim(const aclTensorDesc* desc, size_t index) {
  int64_t length = -1;
  (void)aclGetTensorDescDimV2(desc, index, &length);
  return length;
}

aclError aclGetTensorDescDimV2(const aclTensorDesc* desc, size_t index, int64_t* dimSize) {
  return boundary("aclGetTensorDescDimV2", [&]() -> Status {
    if (desc == nullptr) return null_argument("desc");
    if (dimSize == nullptr) return null_argument("dimSize");
    size_t rank = 0;
    const bool alive = state().tensor_descs.with(desc, [&](const TensorDesc& found) {
      rank = found.shape.size();
      if (index < rank) *dimSize = found.shape[index];
    });
    if (!alive) return not_alive("desc");
    if (index < rank) return {};
    return failure(Code::kInvalidParam, "index is ", index, ", but desc has ", rank, " dimensions.");
  });
}
