// The gradient of rotary position embedding, also for cos and sin, which need x. Without x, that of x alone.
//
//   . "$(descend sdk)/set_env.sh"
//   libraries="-L$ASCEND_CUSTOM_PATH/lib64 -lascendcl -lnnopbase -lopapi"
//   g++ rotary_position_embedding_grad.cpp -I$ASCEND_CUSTOM_PATH/include $libraries
//   ./a.out
#include "aclnnop/aclnn_rotary_position_embedding_grad.h"
#include "device.h"

int main() {
  const Device device;
  const int64_t batch = 2, heads = 3, positions = 4, columns = 16, size = batch * heads * positions * columns;
  const std::vector<int64_t> all = {batch, heads, positions, columns}, angles = {1, 1, positions, columns};
  const std::vector<float> nothing(size), no_angles(positions * columns);
  const DeviceTensor dy(all, numbers(size)), x(all, numbers(size, 1));
  const DeviceTensor cos(angles, numbers(positions * columns, 2)), sin(angles, numbers(positions * columns, 3));
  const DeviceTensor dx(all, nothing), dcos(angles, no_angles), dsin(angles, no_angles), alone(all, nothing);

  uint64_t workspace_size = 0;
  aclOpExecutor* executor = nullptr;
  CHECK(aclnnRotaryPositionEmbeddingGradGetWorkspaceSize(dy.tensor, cos.tensor, sin.tensor, x.tensor, 0, dx.tensor,
                                                         dcos.tensor, dsin.tensor, &workspace_size, &executor));
  launch_and_wait(aclnnRotaryPositionEmbeddingGrad, workspace_size, executor, device.stream());

  // The last two are not computed, but must be given.
  CHECK(aclnnRotaryPositionEmbeddingGradGetWorkspaceSize(dy.tensor, cos.tensor, sin.tensor, nullptr, 0, alone.tensor,
                                                         dcos.tensor, dsin.tensor, &workspace_size, &executor));
  launch_and_wait(aclnnRotaryPositionEmbeddingGrad, workspace_size, executor, device.stream());
  print("dx", dx);
  print("dcos", dcos);
  print("dsin", dsin);
  print("alone", alone);
}
