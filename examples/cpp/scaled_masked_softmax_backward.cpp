// The softmax of causal attention, forward and backward: two heads share one mask.
//
//   . "$(descend sdk)/set_env.sh"
//   libraries="-L$ASCEND_CUSTOM_PATH/lib64 -lascendcl -lnnopbase -lopapi"
//   g++ scaled_masked_softmax_backward.cpp -I$ASCEND_CUSTOM_PATH/include $libraries
//   ./a.out
#include "aclnnop/aclnn_scaled_masked_softmax.h"
#include "aclnnop/aclnn_scaled_masked_softmax_backward.h"
#include "device.h"

int main() {
  const Device device;
  const int64_t heads = 2, length = 4, size = heads * length * length;
  const double scale = 0.5;
  std::vector<float> future(length * length);
  for (int64_t query = 0; query < length; ++query) {
    for (int64_t key = query + 1; key < length; ++key) future[query * length + key] = 1;
  }
  const DeviceTensor scores({1, heads, length, length}, numbers(size));
  const DeviceTensor mask({1, 1, length, length}, future, ACL_BOOL);
  const DeviceTensor y({1, heads, length, length}, std::vector<float>(size));

  uint64_t workspace_size = 0;
  aclOpExecutor* executor = nullptr;
  CHECK(aclnnScaledMaskedSoftmaxGetWorkspaceSize(scores.tensor, mask.tensor, scale, false, y.tensor, &workspace_size,
                                                 &executor));
  launch_and_wait(aclnnScaledMaskedSoftmax, workspace_size, executor, device.stream());

  const DeviceTensor grad({1, heads, length, length}, numbers(size, 1));
  const DeviceTensor out({1, heads, length, length}, std::vector<float>(size));
  CHECK(aclnnScaledMaskedSoftmaxBackwardGetWorkspaceSize(grad.tensor, y.tensor, mask.tensor, scale, false, out.tensor,
                                                         &workspace_size, &executor));
  launch_and_wait(aclnnScaledMaskedSoftmaxBackward, workspace_size, executor, device.stream());
  print("y", y);
  print("out", out);
}
