// Deep norm, which is layer norm of alpha * x + gx, and its gradient.
//
//   . "$(descend sdk)/set_env.sh"
//   libraries="-L$ASCEND_CUSTOM_PATH/lib64 -lascendcl -lnnopbase -lopapi"
//   g++ deep_norm_grad.cpp -I$ASCEND_CUSTOM_PATH/include $libraries
//   ./a.out
#include "aclnnop/aclnn_deep_norm.h"
#include "aclnnop/aclnn_deep_norm_grad.h"
#include "device.h"

int main() {
  const Device device;
  const int64_t rows = 3, columns = 8;
  const double alpha = 0.5;
  const DeviceTensor x({rows, columns}, numbers(rows * columns)), gx({rows, columns}, numbers(rows * columns, 1));
  const DeviceTensor gamma({columns}, numbers(columns, 2)), beta({columns}, numbers(columns, 3));
  const DeviceTensor y({rows, columns}, std::vector<float>(rows * columns));
  const DeviceTensor mean({rows, 1}, std::vector<float>(rows)), rstd({rows, 1}, std::vector<float>(rows));

  uint64_t workspace_size = 0;
  aclOpExecutor* executor = nullptr;
  CHECK(aclnnDeepNormGetWorkspaceSize(x.tensor, gx.tensor, beta.tensor, gamma.tensor, alpha, 1e-5, mean.tensor,
                                      rstd.tensor, y.tensor, &workspace_size, &executor));
  launch_and_wait(aclnnDeepNorm, workspace_size, executor, device.stream());
  print("y", y);

  // The gradient of sum(y * y) / 2 with respect to y is y itself.
  const DeviceTensor dx({rows, columns}, std::vector<float>(rows * columns));
  const DeviceTensor dgx({rows, columns}, std::vector<float>(rows * columns));
  const DeviceTensor dbeta({columns}, std::vector<float>(columns)), dgamma({columns}, std::vector<float>(columns));
  CHECK(aclnnDeepNormGradGetWorkspaceSize(y.tensor, x.tensor, gx.tensor, gamma.tensor, mean.tensor, rstd.tensor, alpha,
                                          dx.tensor, dgx.tensor, dbeta.tensor, dgamma.tensor, &workspace_size,
                                          &executor));
  launch_and_wait(aclnnDeepNormGrad, workspace_size, executor, device.stream());
  print("dx", dx);
  print("dgamma", dgamma);
}
