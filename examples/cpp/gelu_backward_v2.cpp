// GELU by tanh, forward and backward.
//
//   . "$(descend sdk)/set_env.sh"
//   libraries="-L$ASCEND_CUSTOM_PATH/lib64 -lascendcl -lnnopbase -lopapi"
//   g++ gelu_backward_v2.cpp -I$ASCEND_CUSTOM_PATH/include $libraries
//   ./a.out
#include "aclnnop/aclnn_gelu_backward_v2.h"
#include "aclnnop/aclnn_gelu_v2.h"
#include "device.h"

int main() {
  const Device device;
  const int64_t rows = 4, columns = 8, size = rows * columns;
  const DeviceTensor x({rows, columns}, numbers(size));
  const DeviceTensor y({rows, columns}, std::vector<float>(size));

  uint64_t workspace_size = 0;
  aclOpExecutor* executor = nullptr;
  CHECK(aclnnGeluV2GetWorkspaceSize(x.tensor, 1, y.tensor, &workspace_size, &executor));
  launch_and_wait(aclnnGeluV2, workspace_size, executor, device.stream());

  // The gradient of sum(y * y) / 2 with respect to y is y itself.
  const DeviceTensor dx({rows, columns}, std::vector<float>(size));
  char form[] = "tanh";
  CHECK(aclnnGeluBackwardV2GetWorkspaceSize(y.tensor, x.tensor, form, dx.tensor, &workspace_size, &executor));
  launch_and_wait(aclnnGeluBackwardV2, workspace_size, executor, device.stream());
  print("y", y);
  print("dx", dx);
}
