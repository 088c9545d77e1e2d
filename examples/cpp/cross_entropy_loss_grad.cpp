// Cross entropy, forward and backward. One row has no class, and is ignored.
//
//   . "$(descend sdk)/set_env.sh"
//   libraries="-L$ASCEND_CUSTOM_PATH/lib64 -lascendcl -lnnopbase -lopapi"
//   g++ cross_entropy_loss_grad.cpp -I$ASCEND_CUSTOM_PATH/include $libraries
//   ./a.out
#include "aclnnop/aclnn_cross_entropy_loss.h"
#include "aclnnop/aclnn_cross_entropy_loss_grad.h"
#include "device.h"

int main() {
  const Device device;
  const int64_t rows = 4, classes = 8, size = rows * classes;
  const DeviceTensor scores({rows, classes}, numbers(size));
  const DeviceTensor target({rows}, {3, 0, -100, 7}, ACL_INT64);
  const DeviceTensor loss({1}, {0}), zloss({1}, {0}), lse({rows}, std::vector<float>(rows));
  const DeviceTensor log_prob({rows, classes}, std::vector<float>(size));

  uint64_t workspace_size = 0;
  aclOpExecutor* executor = nullptr;
  char reduction[] = "mean";
  CHECK(aclnnCrossEntropyLossGetWorkspaceSize(scores.tensor, target.tensor, nullptr, reduction, -100, 0.0, 0.0, false,
                                              loss.tensor, log_prob.tensor, zloss.tensor, lse.tensor, &workspace_size,
                                              &executor));
  launch_and_wait(aclnnCrossEntropyLoss, workspace_size, executor, device.stream());

  // The gradient is written over the logarithms of the probabilities.
  const DeviceTensor one({1}, {1});
  CHECK(aclnnCrossEntropyLossGradGetWorkspaceSize(one.tensor, log_prob.tensor, target.tensor, nullptr, nullptr, nullptr,
                                                  reduction, -100, 0.0, 0.0, log_prob.tensor, &workspace_size,
                                                  &executor));
  launch_and_wait(aclnnCrossEntropyLossGrad, workspace_size, executor, device.stream());
  print("loss", loss);
  print("dscores", log_prob);
}
