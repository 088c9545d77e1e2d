// GELU by erf, and by tanh, which aclnnGelu computes, too.
//
//   . "$(descend sdk)/set_env.sh"
//   libraries="-L$ASCEND_CUSTOM_PATH/lib64 -lascendcl -lnnopbase -lopapi"
//   g++ gelu_v2.cpp -I$ASCEND_CUSTOM_PATH/include $libraries
//   ./a.out
#include "aclnnop/aclnn_gelu_v2.h"
#include "device.h"

int main() {
  const Device device;
  const int64_t rows = 4, columns = 8, size = rows * columns;
  const std::vector<float> nothing(size);
  const DeviceTensor x({rows, columns}, numbers(size));
  const DeviceTensor by_erf({rows, columns}, nothing), by_tanh({rows, columns}, nothing);

  uint64_t workspace_size = 0;
  aclOpExecutor* executor = nullptr;
  CHECK(aclnnGeluV2GetWorkspaceSize(x.tensor, 0, by_erf.tensor, &workspace_size, &executor));
  launch_and_wait(aclnnGeluV2, workspace_size, executor, device.stream());
  CHECK(aclnnGeluV2GetWorkspaceSize(x.tensor, 1, by_tanh.tensor, &workspace_size, &executor));
  launch_and_wait(aclnnGeluV2, workspace_size, executor, device.stream());
  print("by_erf", by_erf);
  print("by_tanh", by_tanh);
}
