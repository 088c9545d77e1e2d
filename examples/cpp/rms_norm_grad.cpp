// RMS norm forward and backward, the way programs for CANN are written: initialise, create a stream, copy to the
// device, two phases an operator, synchronise, copy back, destroy.
//
//   . "$(descend sdk)/set_env.sh"
//   libraries="-L$ASCEND_CUSTOM_PATH/lib64 -lascendcl -lnnopbase -lopapi"
//   g++ rms_norm_grad.cpp -I$ASCEND_CUSTOM_PATH/include $libraries
//   ./a.out
#include "aclnnop/aclnn_rms_norm.h"
#include "aclnnop/aclnn_rms_norm_grad.h"
#include "device.h"

int main() {
  const Device device;
  const int64_t rows = 2, columns = 4;
  const DeviceTensor x({rows, columns}, {1, 2, 3, 4, -1, 0, 1, 2});
  const DeviceTensor gamma({columns}, {1, 1, 2, 2});
  const DeviceTensor y({rows, columns}, std::vector<float>(rows * columns));
  const DeviceTensor rstd({rows, 1}, std::vector<float>(rows));

  uint64_t workspace_size = 0;
  aclOpExecutor* executor = nullptr;
  CHECK(aclnnRmsNormGetWorkspaceSize(x.tensor, gamma.tensor, 1e-6, y.tensor, rstd.tensor, &workspace_size, &executor));
  launch_and_wait(aclnnRmsNorm, workspace_size, executor, device.stream());

  // The gradient of sum(y * y) / 2 with respect to y is y itself.
  const DeviceTensor dx({rows, columns}, std::vector<float>(rows * columns));
  const DeviceTensor dgamma({columns}, std::vector<float>(columns));
  CHECK(aclnnRmsNormGradGetWorkspaceSize(y.tensor, x.tensor, rstd.tensor, gamma.tensor, dx.tensor, dgamma.tensor,
                                         &workspace_size, &executor));
  launch_and_wait(aclnnRmsNormGrad, workspace_size, executor, device.stream());
  print("dx", dx);
  print("dgamma", dgamma);
}
