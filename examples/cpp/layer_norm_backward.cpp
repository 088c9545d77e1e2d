// Layer norm forward and backward; the mask says which gradients are computed.
//
//   . "$(descend sdk)/set_env.sh"
//   libraries="-L$ASCEND_CUSTOM_PATH/lib64 -lascendcl -lnnopbase -lopapi"
//   g++ layer_norm_backward.cpp -I$ASCEND_CUSTOM_PATH/include $libraries
//   ./a.out
#include "aclnnop/aclnn_layer_norm.h"
#include "aclnnop/aclnn_layer_norm_backward.h"
#include "device.h"

int main() {
  const Device device;
  const int64_t rows = 3, columns = 8;
  const DeviceTensor x({rows, columns}, numbers(rows * columns));
  const DeviceTensor weight({columns}, numbers(columns, 1)), bias({columns}, numbers(columns, 2));
  const DeviceTensor y({rows, columns}, std::vector<float>(rows * columns));
  const DeviceTensor mean({rows, 1}, std::vector<float>(rows)), rstd({rows, 1}, std::vector<float>(rows));
  aclIntArray* const normalized_shape = aclCreateIntArray(&columns, 1);

  uint64_t workspace_size = 0;
  aclOpExecutor* executor = nullptr;
  CHECK(aclnnLayerNormGetWorkspaceSize(x.tensor, normalized_shape, weight.tensor, bias.tensor, 1e-5, y.tensor,
                                       mean.tensor, rstd.tensor, &workspace_size, &executor));
  launch_and_wait(aclnnLayerNorm, workspace_size, executor, device.stream());

  // The gradient of sum(y * y) / 2 with respect to y is y itself. That of the bias is not asked for.
  const bool wanted[] = {true, true, false};
  aclBoolArray* const output_mask = aclCreateBoolArray(wanted, 3);
  const DeviceTensor dx({rows, columns}, std::vector<float>(rows * columns));
  const DeviceTensor dweight({columns}, std::vector<float>(columns));
  CHECK(aclnnLayerNormBackwardGetWorkspaceSize(y.tensor, x.tensor, normalized_shape, mean.tensor, rstd.tensor,
                                               weight.tensor, bias.tensor, output_mask, dx.tensor, dweight.tensor,
                                               nullptr, &workspace_size, &executor));
  launch_and_wait(aclnnLayerNormBackward, workspace_size, executor, device.stream());
  print("dx", dx);
  print("dweight", dweight);
  CHECK(aclDestroyBoolArray(output_mask));
  CHECK(aclDestroyIntArray(normalized_shape));
}
