// The gradient of deep norm, which is layer norm of alpha * x + gx. Layer norm of the sum gives its statistics.
//
//   . "$(descend sdk)/set_env.sh"
//   libraries="-L$ASCEND_CUSTOM_PATH/lib64 -lascendcl -lnnopbase -lopapi"
//   g++ deep_norm_grad.cpp -I$ASCEND_CUSTOM_PATH/include $libraries
//   ./a.out
#include "aclnnop/aclnn_deep_norm_grad.h"
#include "aclnnop/aclnn_layer_norm.h"
#include "device.h"

int main() {
  const Device device;
  const int64_t rows = 3, columns = 8;
  const double alpha = 0.5;
  const std::vector<float> x_values = numbers(rows * columns), gx_values = numbers(rows * columns, 1);
  std::vector<float> sums(rows * columns);
  for (int64_t i = 0; i < rows * columns; ++i) sums[i] = static_cast<float>(alpha) * x_values[i] + gx_values[i];
  const DeviceTensor x({rows, columns}, x_values), gx({rows, columns}, gx_values), sum({rows, columns}, sums);
  const DeviceTensor gamma({columns}, numbers(columns, 2)), beta({columns}, numbers(columns, 3));
  const DeviceTensor y({rows, columns}, std::vector<float>(rows * columns));
  const DeviceTensor mean({rows, 1}, std::vector<float>(rows)), rstd({rows, 1}, std::vector<float>(rows));
  aclIntArray* const normalized_shape = aclCreateIntArray(&columns, 1);

  uint64_t workspace_size = 0;
  aclOpExecutor* executor = nullptr;
  CHECK(aclnnLayerNormGetWorkspaceSize(sum.tensor, normalized_shape, gamma.tensor, beta.tensor, 1e-5, y.tensor,
                                       mean.tensor, rstd.tensor, &workspace_size, &executor));
  launch_and_wait(aclnnLayerNorm, workspace_size, executor, device.stream());

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
  CHECK(aclDestroyIntArray(normalized_shape));
}
