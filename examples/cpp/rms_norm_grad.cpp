// RMS norm forward and backward, the way programs for CANN are written: initialise, create a stream, copy to the
// device, two phases an operator, synchronise, copy back, destroy.
//
//   . "$(descend sdk)/set_env.sh"
//   g++ rms_norm_grad.cpp -I$ASCEND_CUSTOM_PATH/include -L$ASCEND_CUSTOM_PATH/lib64 -lascendcl -lnnopbase -lopapi
//   ./a.out
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "acl/acl.h"
#include "aclnnop/aclnn_rms_norm.h"
#include "aclnnop/aclnn_rms_norm_grad.h"

#define CHECK(call)                                                                    \
  do {                                                                                 \
    const int status = (call);                                                         \
    if (status != 0) {                                                                 \
      std::fprintf(stderr, "%s failed: %d %s\n", #call, status, aclGetRecentErrMsg()); \
      std::exit(1);                                                                    \
    }                                                                                  \
  } while (0)

// A tensor of floats in device memory.
struct DeviceTensor {
  DeviceTensor(const std::vector<int64_t>& shape, const std::vector<float>& values)
      : bytes(values.size() * sizeof(float)) {
    CHECK(aclrtMalloc(&memory, bytes, ACL_MEM_MALLOC_HUGE_FIRST));
    CHECK(aclrtMemcpy(memory, bytes, values.data(), bytes, ACL_MEMCPY_HOST_TO_DEVICE));
    std::vector<int64_t> strides(shape.size(), 1);
    for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
    tensor = aclCreateTensor(shape.data(), shape.size(), ACL_FLOAT, strides.data(), 0, ACL_FORMAT_ND, shape.data(),
                             shape.size(), memory);
  }
  ~DeviceTensor() {
    aclDestroyTensor(tensor);
    aclrtFree(memory);
  }
  DeviceTensor(const DeviceTensor&) = delete;
  DeviceTensor& operator=(const DeviceTensor&) = delete;

  std::vector<float> values() const {
    std::vector<float> host(bytes / sizeof(float));
    CHECK(aclrtMemcpy(host.data(), bytes, memory, bytes, ACL_MEMCPY_DEVICE_TO_HOST));
    return host;
  }

  size_t bytes;
  void* memory = nullptr;
  aclTensor* tensor = nullptr;
};

using Run = aclnnStatus (*)(void*, uint64_t, aclOpExecutor*, aclrtStream);

void launch_and_wait(Run run, uint64_t workspace_size, aclOpExecutor* executor, aclrtStream stream) {
  void* workspace = nullptr;
  if (workspace_size > 0) CHECK(aclrtMalloc(&workspace, workspace_size, ACL_MEM_MALLOC_HUGE_FIRST));
  CHECK(run(workspace, workspace_size, executor, stream));
  CHECK(aclrtSynchronizeStream(stream));
  if (workspace != nullptr) aclrtFree(workspace);
}

int main() {
  aclrtStream stream = nullptr;
  CHECK(aclInit(nullptr));
  CHECK(aclrtSetDevice(0));
  CHECK(aclrtCreateStream(&stream));
  {
    const int64_t rows = 2, columns = 4;
    const DeviceTensor x({rows, columns}, {1, 2, 3, 4, -1, 0, 1, 2});
    const DeviceTensor gamma({columns}, {1, 1, 2, 2});
    const DeviceTensor y({rows, columns}, std::vector<float>(rows * columns));
    const DeviceTensor rstd({rows, 1}, std::vector<float>(rows));

    uint64_t workspace_size = 0;
    aclOpExecutor* executor = nullptr;
    CHECK(
        aclnnRmsNormGetWorkspaceSize(x.tensor, gamma.tensor, 1e-6, y.tensor, rstd.tensor, &workspace_size, &executor));
    launch_and_wait(aclnnRmsNorm, workspace_size, executor, stream);

    // The gradient of sum(y * y) / 2 with respect to y is y itself.
    const DeviceTensor dx({rows, columns}, std::vector<float>(rows * columns));
    const DeviceTensor dgamma({columns}, std::vector<float>(columns));
    CHECK(aclnnRmsNormGradGetWorkspaceSize(y.tensor, x.tensor, rstd.tensor, gamma.tensor, dx.tensor, dgamma.tensor,
                                           &workspace_size, &executor));
    launch_and_wait(aclnnRmsNormGrad, workspace_size, executor, stream);

    for (float value : dx.values()) std::printf("dx %f\n", value);
    for (float value : dgamma.values()) std::printf("dgamma %f\n", value);
  }
  CHECK(aclrtDestroyStream(stream));
  CHECK(aclrtResetDevice(0));
  CHECK(aclFinalize());
  return 0;
}
