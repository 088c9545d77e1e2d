// SwiGLU of the last dimension, whose first half is the gate, and of the first dimension: there the gate and the other
// factor are matrices, one after the other in memory.
//
//   . "$(descend sdk)/set_env.sh"
//   libraries="-L$ASCEND_CUSTOM_PATH/lib64 -lascendcl -lnnopbase -lopapi"
//   g++ swi_glu.cpp -I$ASCEND_CUSTOM_PATH/include $libraries
//   ./a.out
#include "aclnnop/aclnn_swi_glu.h"
#include "device.h"

int main() {
  const Device device;
  const int64_t rows = 4, columns = 16, size = rows * columns;
  const DeviceTensor x({rows, columns}, numbers(size));
  const DeviceTensor of_columns({rows, columns / 2}, std::vector<float>(size / 2));
  const DeviceTensor of_rows({rows / 2, columns}, std::vector<float>(size / 2));

  uint64_t workspace_size = 0;
  aclOpExecutor* executor = nullptr;
  CHECK(aclnnSwiGluGetWorkspaceSize(x.tensor, -1, of_columns.tensor, &workspace_size, &executor));
  launch_and_wait(aclnnSwiGlu, workspace_size, executor, device.stream());
  CHECK(aclnnSwiGluGetWorkspaceSize(x.tensor, 0, of_rows.tensor, &workspace_size, &executor));
  launch_and_wait(aclnnSwiGlu, workspace_size, executor, device.stream());
  print("of_columns", of_columns);
  print("of_rows", of_rows);
}
