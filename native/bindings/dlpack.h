// The part of DLPack 1.x's binary interface that is used here (https://dmlc.github.io/dlpack/latest/).
#pragma once

#include <cstdint>

namespace descend::dlpack {

struct Version {
  uint32_t major;
  uint32_t minor;
};

enum DeviceType : int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kRocmHost = 11, kCudaManaged = 13 };

struct Device {
  int32_t type;
  int32_t id;
};

enum TypeCode : uint8_t { kInt = 0, kUint = 1, kFloat = 2, kBfloat = 4, kComplex = 5, kBool = 6 };

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null means contiguous (before version 1.2)
  uint64_t byte_offset;
};

struct ManagedTensor {  // capsules named "dltensor"
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor* self);
};

// Flags.
inline constexpr uint64_t kReadOnly = 1, kCopied = 2;

struct ManagedTensorVersioned {  // capsules named "dltensor_versioned"
  Version version;
  void* context;
  void (*deleter)(ManagedTensorVersioned* self);
  uint64_t flags;
  Tensor tensor;
};

// What `type(tensor).__dlpack_c_exchange_api__` points to, in a capsule named "dlpack_exchange_api".
struct ExchangeApi {
  Version version;
  void* previous;
  int (*allocate)(Tensor* prototype, ManagedTensorVersioned** out, void* error_context,
                  void (*set_error)(void* error_context, const char* kind, const char* message));
  int (*managed_from_object)(void* object, ManagedTensorVersioned** out);
  int (*object_from_managed)(ManagedTensorVersioned* tensor, void** out);
  int (*borrow_from_object)(void* object, Tensor* out);
  int (*current_stream)(int32_t device_type, int32_t device_id, void** out);
};

}  // namespace descend::dlpack
