// Data buffers and descriptions of tensors, for calls of operators by name.
#include <algorithm>

#include "acl/acl_base.h"
#include "capi/objects.h"

using namespace descend;
using namespace descend::capi;

namespace {

// The number of elements times `each`. 0 if a dimension is unknown or the product overflows.
size_t count(const TensorDesc& desc, size_t each) {
  size_t product = each;
  for (const int64_t length : desc.shape) {
    if (length < 0 || __builtin_mul_overflow(product, static_cast<size_t>(length), &product)) return 0;
  }
  return product;
}

Status check_dims(int count, const int64_t* dims) {
  if (count < 0) return failure(Code::kInvalidParam, "numDims is ", count, ", but must be at least 0.");
  if (dims != nullptr || count == 0) return {};
  return failure(Code::kInvalidParam, "dims is null, but numDims is ", count, ".");
}

// Calls change_it(description) -> Status, if the description exists.
template <class Change>
aclError change(const char* function, const aclTensorDesc* desc, Change change_it) noexcept {
  return boundary(function, [&]() -> Status {
    if (desc == nullptr) return null_argument("desc");
    Status status;
    const bool alive = state().tensor_descs.with(desc, [&](TensorDesc& found) { status = change_it(found); });
    return alive ? status : not_alive("desc");
  });
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
    if (const Status status = check_dims(numDims, dims); !status.ok()) {
      (void)report("aclCreateTensorDesc", status);
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

void aclSetTensorDescName(aclTensorDesc* desc, const char* name) {
  (void)change("aclSetTensorDescName", desc, [&](TensorDesc& found) -> Status {
    if (name == nullptr) return null_argument("name");
    found.name = name;
    return {};
  });
}

const char* aclGetTensorDescName(aclTensorDesc* desc) {
  const char* name = "";
  (void)change("aclGetTensorDescName", desc, [&](TensorDesc& found) -> Status {
    name = found.name.c_str();  // valid until the description is destroyed or renamed
    return {};
  });
  return name;
}

aclError aclSetTensorFormat(aclTensorDesc* desc, aclFormat format) {
  return change("aclSetTensorFormat", desc, [&](TensorDesc& found) -> Status {
    found.storage_format = format;
    return {};
  });
}

aclError aclSetTensorShape(aclTensorDesc* desc, int numDims, const int64_t* dims) {
  return change("aclSetTensorShape", desc, [&](TensorDesc& found) -> Status {
    DESCEND_RETURN_IF_ERROR(check_dims(numDims, dims));
    found.storage_shape = Dims(dims, static_cast<size_t>(numDims));
    return {};
  });
}

aclError aclSetTensorPlaceMent(aclTensorDesc* desc, aclMemType memType) {
  return change("aclSetTensorPlaceMent", desc, [&](TensorDesc& found) -> Status {
    if (memType > ACL_MEMTYPE_HOST_COMPILE_INDEPENDENT) {
      return failure(Code::kInvalidParam, "memType is ", static_cast<unsigned>(memType), ", but must be 0, 1 or 2.");
    }
    found.placement = memType;
    return {};
  });
}

aclError aclSetTensorConst(aclTensorDesc* desc, void* dataBuffer, size_t length) {
  return change("aclSetTensorConst", desc, [&](TensorDesc& found) -> Status {
    if (dataBuffer == nullptr && length > 0) {
      return failure(Code::kInvalidParam, "dataBuffer is null, but length is ", length, ".");
    }
    found.constant = DataBuffer{dataBuffer, length};
    return {};
  });
}
