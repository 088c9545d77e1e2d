// Training: RMS norm learns the weight that made its target, by gradient descent. The executors of both directions are
// made once and run in every step.
//
//   . "$(descend sdk)/set_env.sh"
//   libraries="-L$ASCEND_CUSTOM_PATH/lib64 -lascendcl -lnnopbase -lopapi"
//   g++ train.cpp -I$ASCEND_CUSTOM_PATH/include $libraries
//   ./a.out
#include "aclnnop/aclnn_rms_norm.h"
#include "aclnnop/aclnn_rms_norm_grad.h"
#include "device.h"

namespace {

// A prepared operator that runs as often as one likes.
class Repeatable {
 public:
  Repeatable(Run run, uint64_t workspace_size, aclOpExecutor* executor)
      : run_(run), workspace_size_(workspace_size), executor_(executor) {
    CHECK(aclSetAclOpExecutorRepeatable(executor));
    if (workspace_size > 0) CHECK(aclrtMalloc(&workspace_, workspace_size, ACL_MEM_MALLOC_HUGE_FIRST));
  }
  ~Repeatable() {
    CHECK(aclDestroyAclOpExecutor(executor_));
    if (workspace_ != nullptr) CHECK(aclrtFree(workspace_));
  }
  Repeatable(const Repeatable&) = delete;
  Repeatable& operator=(const Repeatable&) = delete;

  void launch(aclrtStream stream) const { CHECK(run_(workspace_, workspace_size_, executor_, stream)); }

 private:
  Run run_;
  uint64_t workspace_size_;
  aclOpExecutor* executor_;
  void* workspace_ = nullptr;
};

}  // namespace

int main() {
  const Device device;
  const aclrtStream stream = device.stream();
  const int64_t rows = 64, columns = 32, size = rows * columns;
  const DeviceTensor x({rows, columns}, numbers(size)), secret({columns}, numbers(columns, 5));
  const DeviceTensor gamma({columns}, std::vector<float>(columns, 1.0f)),
      dgamma({columns}, std::vector<float>(columns));
  const DeviceTensor y({rows, columns}, std::vector<float>(size)), rstd({rows, 1}, std::vector<float>(rows));
  const DeviceTensor dy({rows, columns}, std::vector<float>(size)), dx({rows, columns}, std::vector<float>(size));

  uint64_t workspace_size = 0;
  aclOpExecutor* executor = nullptr;
  CHECK(aclnnRmsNormGetWorkspaceSize(x.tensor, secret.tensor, 1e-6, y.tensor, rstd.tensor, &workspace_size, &executor));
  launch_and_wait(aclnnRmsNorm, workspace_size, executor, stream);
  const std::vector<float> target = y.values();

  CHECK(aclnnRmsNormGetWorkspaceSize(x.tensor, gamma.tensor, 1e-6, y.tensor, rstd.tensor, &workspace_size, &executor));
  const Repeatable forward(aclnnRmsNorm, workspace_size, executor);
  CHECK(aclnnRmsNormGradGetWorkspaceSize(dy.tensor, x.tensor, rstd.tensor, gamma.tensor, dx.tensor, dgamma.tensor,
                                         &workspace_size, &executor));
  const Repeatable backward(aclnnRmsNormGrad, workspace_size, executor);

  std::vector<float> weight = gamma.values();
  double loss = 0;
  for (int step = 0; step <= 100; ++step) {
    forward.launch(stream);
    CHECK(aclrtSynchronizeStream(stream));
    // The gradient of the mean squared error over two; what is copied now is in order with the work on the stream.
    std::vector<float> error = y.values();
    loss = 0;
    for (int64_t i = 0; i < size; ++i) {
      error[i] -= target[i];
      loss += error[i] * error[i] / (2.0 * rows);
      error[i] /= rows;
    }
    if (step % 20 == 0) std::printf("step %3d  loss %.9f\n", step, loss);
    CHECK(aclrtMemcpyAsync(dy.memory, dy.bytes, error.data(), dy.bytes, ACL_MEMCPY_HOST_TO_DEVICE, stream));
    backward.launch(stream);
    CHECK(aclrtSynchronizeStream(stream));
    const std::vector<float> gradient = dgamma.values();
    for (int64_t c = 0; c < columns; ++c) weight[c] -= 0.1f * gradient[c];
    CHECK(aclrtMemcpy(gamma.memory, gamma.bytes, weight.data(), gamma.bytes, ACL_MEMCPY_HOST_TO_DEVICE));
  }
  return loss < 1e-6 ? 0 : 1;
}
