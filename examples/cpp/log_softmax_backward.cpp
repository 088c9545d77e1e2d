// Log softmax along the first dimension, from whose result the gradient is computed.
//
//   . "$(descend sdk)/set_env.sh"
//   libraries="-L$ASCEND_CUSTOM_PATH/lib64 -lascendcl -lnnopbase -lopapi"
//   g++ log_softmax_backward.cpp -I$ASCEND_CUSTOM_PATH/include $libraries
//   ./a.out
#include "aclnnop/aclnn_logsoftmax.h"
#include "aclnnop/aclnn_logsoftmax_backward.h"
#include "device.h"

int main() {
  const Device device;
  const int64_t rows = 4, columns = 8, size = rows * columns, dim = 0;
  const DeviceTensor x({rows, columns}, numbers(size)), dy({rows, columns}, numbers(size, 1));
  const DeviceTensor y({rows, columns}, std::vector<float>(size)), dx({rows, columns}, std::vector<float>(size));

  uint64_t workspace_size = 0;
  aclOpExecutor* executor = nullptr;
  CHECK(aclnnLogSoftmaxGetWorkspaceSize(x.tensor, dim, y.tensor, &workspace_size, &executor));
  launch_and_wait(aclnnLogSoftmax, workspace_size, executor, device.stream());
  CHECK(aclnnLogSoftmaxBackwardGetWorkspaceSize(dy.tensor, y.tensor, dim, dx.tensor, &workspace_size, &executor));
  launch_and_wait(aclnnLogSoftmaxBackward, workspace_size, executor, device.stream());
  print("y", y);
  print("dx", dx);
}
