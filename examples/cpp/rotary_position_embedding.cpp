// Rotary position embedding of a batch of heads: the halves of each row turned, and then its neighbours. The angles are
// those of the positions, the same for batch and heads.
//
//   . "$(descend sdk)/set_env.sh"
//   libraries="-L$ASCEND_CUSTOM_PATH/lib64 -lascendcl -lnnopbase -lopapi"
//   g++ rotary_position_embedding.cpp -I$ASCEND_CUSTOM_PATH/include $libraries
//   ./a.out
#include "aclnnop/aclnn_rotary_position_embedding.h"
#include "device.h"

int main() {
  const Device device;
  const int64_t batch = 2, heads = 3, positions = 4, columns = 16, size = batch * heads * positions * columns;
  std::vector<float> cosines, sines;
  for (int64_t i = 0; i < positions * columns; ++i) {
    const double angle = std::pow(100.0, -static_cast<double>(i % (columns / 2)) / (columns / 2));
    cosines.push_back(static_cast<float>(std::cos(angle * static_cast<double>(i / columns))));
    sines.push_back(static_cast<float>(std::sin(angle * static_cast<double>(i / columns))));
  }
  const DeviceTensor x({batch, heads, positions, columns}, numbers(size));
  const DeviceTensor cos({1, 1, positions, columns}, cosines), sin({1, 1, positions, columns}, sines);
  const DeviceTensor halves({batch, heads, positions, columns}, std::vector<float>(size));
  const DeviceTensor neighbours({batch, heads, positions, columns}, std::vector<float>(size));

  uint64_t workspace_size = 0;
  aclOpExecutor* executor = nullptr;
  CHECK(aclnnRotaryPositionEmbeddingGetWorkspaceSize(x.tensor, cos.tensor, sin.tensor, 0, halves.tensor,
                                                     &workspace_size, &executor));
  launch_and_wait(aclnnRotaryPositionEmbedding, workspace_size, executor, device.stream());
  CHECK(aclnnRotaryPositionEmbeddingGetWorkspaceSize(x.tensor, cos.tensor, sin.tensor, 1, neighbours.tensor,
                                                     &workspace_size, &executor));
  launch_and_wait(aclnnRotaryPositionEmbedding, workspace_size, executor, device.stream());
  print("halves", halves);
  print("neighbours", neighbours);
}
