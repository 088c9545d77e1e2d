// The sum of a residual connection and its RMS norm, as one operator; then once more in place, and the gradient, which
// is that of RMS norm.
//
//   . "$(descend sdk)/set_env.sh"
//   libraries="-L$ASCEND_CUSTOM_PATH/lib64 -lascendcl -lnnopbase -lopapi"
//   g++ add_rms_norm.cpp -I$ASCEND_CUSTOM_PATH/include $libraries
//   ./a.out
#include "aclnnop/aclnn_add_rms_norm.h"
#include "aclnnop/aclnn_inplace_add_rms_norm.h"
#include "aclnnop/aclnn_rms_norm_grad.h"
#include "device.h"

int main() {
  const Device device;
  const int64_t rows = 3, columns = 8, size = rows * columns;
  const std::vector<float> nothing(size);
  const DeviceTensor x1({rows, columns}, numbers(size));
  const DeviceTensor x2({rows, columns}, numbers(size, 1));
  const DeviceTensor gamma({columns}, numbers(columns, 2));
  const DeviceTensor y({rows, columns}, nothing), x({rows, columns}, nothing);
  const DeviceTensor rstd({rows, 1}, std::vector<float>(rows));

  uint64_t workspace_size = 0;
  aclOpExecutor* executor = nullptr;
  CHECK(aclnnAddRmsNormGetWorkspaceSize(x1.tensor, x2.tensor, gamma.tensor, 1e-6, y.tensor, rstd.tensor, x.tensor,
                                        &workspace_size, &executor));
  launch_and_wait(aclnnAddRmsNorm, workspace_size, executor, device.stream());

  // The gradient of sum(y * y) / 2 with respect to x, and so to x1 and to x2.
  const DeviceTensor dx({rows, columns}, nothing);
  const DeviceTensor dgamma({columns}, std::vector<float>(columns));
  CHECK(aclnnRmsNormGradGetWorkspaceSize(y.tensor, x.tensor, rstd.tensor, gamma.tensor, dx.tensor, dgamma.tensor,
                                         &workspace_size, &executor));
  launch_and_wait(aclnnRmsNormGrad, workspace_size, executor, device.stream());
  print("x", x);
  print("dx", dx);
  print("dgamma", dgamma);

  // In place x1 becomes y, and x2 the sum.
  CHECK(aclnnInplaceAddRmsNormGetWorkspaceSize(x1.tensor, x2.tensor, gamma.tensor, 1e-6, rstd.tensor, &workspace_size,
                                               &executor));
  launch_and_wait(aclnnInplaceAddRmsNorm, workspace_size, executor, device.stream());
  print("y", x1);
  print("x2", x2);
}
