// SwiGLU forward and backward.
//
//   . "$(descend sdk)/set_env.sh"
//   libraries="-L$ASCEND_CUSTOM_PATH/lib64 -lascendcl -lnnopbase -lopapi"
//   g++ swi_glu_grad.cpp -I$ASCEND_CUSTOM_PATH/include $libraries
//   ./a.out
#include "aclnnop/aclnn_swi_glu.h"
#include "aclnnop/aclnn_swi_glu_grad.h"
#include "device.h"

int main() {
  const Device device;
  const int64_t rows = 3, columns = 16, size = rows * columns;
  const DeviceTensor x({rows, columns}, numbers(size));
  const DeviceTensor y({rows, columns / 2}, std::vector<float>(size / 2));

  uint64_t workspace_size = 0;
  aclOpExecutor* executor = nullptr;
  CHECK(aclnnSwiGluGetWorkspaceSize(x.tensor, -1, y.tensor, &workspace_size, &executor));
  launch_and_wait(aclnnSwiGlu, workspace_size, executor, device.stream());

  // The gradient of sum(y * y) / 2 with respect to y is y itself.
  const DeviceTensor out({rows, columns}, std::vector<float>(size));
  CHECK(aclnnSwiGluGradGetWorkspaceSize(y.tensor, x.tensor, -1, out.tensor, &workspace_size, &executor));
  launch_and_wait(aclnnSwiGluGrad, workspace_size, executor, device.stream());
  print("y", y);
  print("out", out);
}
