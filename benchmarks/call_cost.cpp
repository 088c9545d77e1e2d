// What a call costs from C: both phases of RmsNormGrad on 8 x 64 float32, and a synchronise, on an idle stream.
// Prints one line for each way of calling: its name, and the median, the 10th and the 90th percentile in microseconds.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "acl/acl.h"
#include "aclnnop/aclnn_rms_norm_grad.h"

#define CHECK(call)                                                                    \
  do {                                                                                 \
    const int status = (call);                                                         \
    if (status != 0) {                                                                 \
      std::fprintf(stderr, "%s failed: %d %s\n", #call, status, aclGetRecentErrMsg()); \
      std::exit(1);                                                                    \
    }                                                                                  \
  } while (0)

namespace {

aclTensor* device_tensor(const std::vector<int64_t>& shape) {
  int64_t size = 1;
  for (int64_t length : shape) size *= length;
  const std::vector<float> values(size, 0.5f);
  void* memory = nullptr;
  CHECK(aclrtMalloc(&memory, size * sizeof(float), ACL_MEM_MALLOC_HUGE_FIRST));
  CHECK(aclrtMemcpy(memory, size * sizeof(float), values.data(), size * sizeof(float), ACL_MEMCPY_HOST_TO_DEVICE));
  return aclCreateTensor(shape.data(), shape.size(), ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, shape.data(), shape.size(),
                         memory);
}

// Batches, so that reading the clock does not count.
template <class Call>
void measure(const char* name, Call call) {
  constexpr int kBatches = 2000, kCalls = 20;
  std::vector<double> times(kBatches);
  for (int i = 0; i < 1000; ++i) call();
  for (double& time : times) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) call();
    time = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / kCalls;
  }
  std::sort(times.begin(), times.end());
  std::printf("%s %.3f %.3f %.3f\n", name, times[kBatches / 2], times[kBatches / 10], times[kBatches * 9 / 10]);
}

}  // namespace

int main() {
  aclrtStream stream = nullptr;
  CHECK(aclInit(nullptr));
  CHECK(aclrtSetDevice(0));
  CHECK(aclrtCreateStream(&stream));
  aclTensor* const dy = device_tensor({8, 64});
  aclTensor* const x = device_tensor({8, 64});
  aclTensor* const rstd = device_tensor({8});
  aclTensor* const gamma = device_tensor({64});
  aclTensor* const dx = device_tensor({8, 64});
  aclTensor* const dgamma = device_tensor({64});

  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  CHECK(aclnnRmsNormGradGetWorkspaceSize(dy, x, rstd, gamma, dx, dgamma, &size, &executor));
  void* workspace = nullptr;
  if (size > 0) CHECK(aclrtMalloc(&workspace, size, ACL_MEM_MALLOC_HUGE_FIRST));
  CHECK(aclSetAclOpExecutorRepeatable(executor));

  measure("two-phase", [&] {
    aclOpExecutor* once = nullptr;
    CHECK(aclnnRmsNormGradGetWorkspaceSize(dy, x, rstd, gamma, dx, dgamma, &size, &once));
    CHECK(aclnnRmsNormGrad(workspace, size, once, stream));
    CHECK(aclrtSynchronizeStream(stream));
  });
  measure("repeatable", [&] {
    CHECK(aclnnRmsNormGrad(workspace, size, executor, stream));
    CHECK(aclrtSynchronizeStream(stream));
  });
  CHECK(aclDestroyAclOpExecutor(executor));
  CHECK(aclrtDestroyStream(stream));
  CHECK(aclFinalize());
  return 0;
}
