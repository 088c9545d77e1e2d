// What the examples share: a check of every status, tensors in device memory, a call of the second phase.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "acl/acl.h"
#include "aclnn/acl_meta.h"

#define CHECK(call)                                                                    \
  do {                                                                                 \
    const int status = (call);                                                         \
    if (status != 0) {                                                                 \
      std::fprintf(stderr, "%s failed: %d %s\n", #call, status, aclGetRecentErrMsg()); \
      std::exit(1);                                                                    \
    }                                                                                  \
  } while (0)

// A tensor in device memory, of FLOAT, FLOAT16, INT64 or BOOL.
struct DeviceTensor {
  DeviceTensor(const std::vector<int64_t>& shape, const std::vector<float>& values, aclDataType type = ACL_FLOAT)
      : dtype(type), bytes(values.size() * aclDataTypeSize(type)) {
    std::vector<unsigned char> host(bytes);
    for (size_t i = 0; i < values.size(); ++i) {
      const aclFloat16 half = aclFloatToFloat16(values[i]);
      const auto whole = static_cast<int64_t>(values[i]);
      const unsigned char truth = values[i] != 0;
      const void* value = type == ACL_FLOAT     ? static_cast<const void*>(&values[i])
                          : type == ACL_FLOAT16 ? static_cast<const void*>(&half)
                          : type == ACL_INT64   ? static_cast<const void*>(&whole)
                                                : &truth;
      std::memcpy(&host[i * aclDataTypeSize(type)], value, aclDataTypeSize(type));
    }
    CHECK(aclrtMalloc(&memory, bytes, ACL_MEM_MALLOC_HUGE_FIRST));
    CHECK(aclrtMemcpy(memory, bytes, host.data(), bytes, ACL_MEMCPY_HOST_TO_DEVICE));
    std::vector<int64_t> strides(shape.size(), 1);
    for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
    tensor = aclCreateTensor(shape.data(), shape.size(), type, strides.data(), 0, ACL_FORMAT_ND, shape.data(),
                             shape.size(), memory);
  }
  ~DeviceTensor() {
    aclDestroyTensor(tensor);
    aclrtFree(memory);
  }
  DeviceTensor(const DeviceTensor&) = delete;
  DeviceTensor& operator=(const DeviceTensor&) = delete;

  // The values of a FLOAT or FLOAT16 tensor, on the host.
  std::vector<float> values() const {
    std::vector<unsigned char> host(bytes);
    CHECK(aclrtMemcpy(host.data(), bytes, memory, bytes, ACL_MEMCPY_DEVICE_TO_HOST));
    std::vector<float> result(bytes / aclDataTypeSize(dtype));
    for (size_t i = 0; i < result.size(); ++i) {
      if (dtype == ACL_FLOAT) {
        std::memcpy(&result[i], &host[i * sizeof(float)], sizeof(float));
      } else {
        aclFloat16 half;
        std::memcpy(&half, &host[i * sizeof(half)], sizeof(half));
        result[i] = aclFloat16ToFloat(half);
      }
    }
    return result;
  }

  aclDataType dtype;
  size_t bytes;
  void* memory = nullptr;
  aclTensor* tensor = nullptr;
};

// So many numbers from -1 to 1, in no obvious order.
inline std::vector<float> numbers(int64_t count, double start = 0) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(std::sin(start + 2.4 * static_cast<double>(i)));
  return values;
}

using Run = aclnnStatus (*)(void*, uint64_t, aclOpExecutor*, aclrtStream);

// The second phase. The workspace is freed once it has run.
inline void launch_and_wait(Run run, uint64_t workspace_size, aclOpExecutor* executor, aclrtStream stream) {
  void* workspace = nullptr;
  if (workspace_size > 0) CHECK(aclrtMalloc(&workspace, workspace_size, ACL_MEM_MALLOC_HUGE_FIRST));
  CHECK(run(workspace, workspace_size, executor, stream));
  CHECK(aclrtSynchronizeStream(stream));
  if (workspace != nullptr) aclrtFree(workspace);
}

// Prints a name and the values of a tensor.
inline void print(const char* name, const DeviceTensor& tensor) {
  std::printf("%s", name);
  for (const float value : tensor.values()) std::printf(" %.5f", value);
  std::printf("\n");
}

// Initialises the device, and finalises it at the end of the program.
class Device {
 public:
  Device() {
    CHECK(aclInit(nullptr));
    CHECK(aclrtSetDevice(0));
    CHECK(aclrtCreateStream(&stream_));
  }
  ~Device() {
    CHECK(aclrtDestroyStream(stream_));
    CHECK(aclrtResetDevice(0));
    CHECK(aclFinalize());
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  aclrtStream stream() const { return stream_; }

 private:
  aclrtStream stream_ = nullptr;
};
