// Layer norm of a sum and its gradient: what stands between the layers of a transformer. The sum goes on beside its
// norm, and so a gradient comes back for each.
//
//   . "$(descend sdk)/set_env.sh"
//   libraries="-L$ASCEND_CUSTOM_PATH/lib64 -lascendcl -lnnopbase -lopapi"
//   g++ add_layer_norm.cpp -I$ASCEND_CUSTOM_PATH/include $libraries
//   ./a.out
#include "aclnnop/aclnn_add_layer_norm.h"
#include "aclnnop/aclnn_add_layer_norm_grad.h"
#include "device.h"

int main() {
  const Device device;
  const int64_t rows = 3, columns = 8;
  const DeviceTensor x1({rows, columns}, numbers(rows * columns)), x2({rows, columns}, numbers(rows * columns, 1));
  const DeviceTensor gamma({columns}, numbers(columns, 2)), beta({columns}, numbers(columns, 3));
  const DeviceTensor y({rows, columns}, std::vector<float>(rows * columns));
  const DeviceTensor x({rows, columns}, std::vector<float>(rows * columns));
  const DeviceTensor mean({rows, 1}, std::vector<float>(rows)), rstd({rows, 1}, std::vector<float>(rows));

  uint64_t workspace_size = 0;
  aclOpExecutor* executor = nullptr;
  CHECK(aclnnAddLayerNormGetWorkspaceSize(x1.tensor, x2.tensor, gamma.tensor, beta.tensor, nullptr, 1e-5, true,
                                          y.tensor, mean.tensor, rstd.tensor, x.tensor, &workspace_size, &executor));
  launch_and_wait(aclnnAddLayerNorm, workspace_size, executor, device.stream());
  print("y", y);
  print("x", x);

  // The gradient of sum(y * y + x * x) / 2 with respect to y is y itself, and that with respect to the sum is x.
  const DeviceTensor dx({rows, columns}, std::vector<float>(rows * columns));
  const DeviceTensor dgamma({columns}, std::vector<float>(columns)), dbeta({columns}, std::vector<float>(columns));
  CHECK(aclnnAddLayerNormGradGetWorkspaceSize(y.tensor, x1.tensor, x2.tensor, rstd.tensor, mean.tensor, gamma.tensor,
                                              x.tensor, dx.tensor, dgamma.tensor, dbeta.tensor, &workspace_size,
                                              &executor));
  launch_and_wait(aclnnAddLayerNormGrad, workspace_size, executor, device.stream());
  print("dx", dx);
  print("dgamma", dgamma);
}
