// Gemma's RMS norm, whose weight is 1 + gamma, and its gradient: that of RMS norm with this weight.
//
//   . "$(descend sdk)/set_env.sh"
//   libraries="-L$ASCEND_CUSTOM_PATH/lib64 -lascendcl -lnnopbase -lopapi"
//   g++ gemma_rms_norm.cpp -I$ASCEND_CUSTOM_PATH/include $libraries
//   ./a.out
#include "aclnnop/aclnn_gemma_rms_norm.h"
#include "aclnnop/aclnn_rms_norm_grad.h"
#include "device.h"

int main() {
  const Device device;
  const int64_t rows = 3, columns = 8, size = rows * columns;
  std::vector<float> gammas = numbers(columns, 1);
  const DeviceTensor x({rows, columns}, numbers(size));
  const DeviceTensor gamma({columns}, gammas);
  const DeviceTensor y({rows, columns}, std::vector<float>(size));
  const DeviceTensor rstd({rows, 1}, std::vector<float>(rows));

  uint64_t workspace_size = 0;
  aclOpExecutor* executor = nullptr;
  CHECK(aclnnGemmaRmsNormGetWorkspaceSize(x.tensor, gamma.tensor, 1e-6, y.tensor, rstd.tensor, &workspace_size,
                                          &executor));
  launch_and_wait(aclnnGemmaRmsNorm, workspace_size, executor, device.stream());

  // The gradient of sum(y * y) / 2 with respect to y is y itself.
  for (float& value : gammas) value += 1;
  const DeviceTensor weight({columns}, gammas);
  const DeviceTensor dx({rows, columns}, std::vector<float>(size));
  const DeviceTensor dgamma({columns}, std::vector<float>(columns));
  CHECK(aclnnRmsNormGradGetWorkspaceSize(y.tensor, x.tensor, rstd.tensor, weight.tensor, dx.tensor, dgamma.tensor,
                                         &workspace_size, &executor));
  launch_and_wait(aclnnRmsNormGrad, workspace_size, executor, device.stream());
  print("y", y);
  print("dx", dx);
  print("dgamma", dgamma);
}
