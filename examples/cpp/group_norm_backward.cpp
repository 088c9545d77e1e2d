// Group norm, forward and backward, on two images of four channels in two groups.
//
//   . "$(descend sdk)/set_env.sh"
//   libraries="-L$ASCEND_CUSTOM_PATH/lib64 -lascendcl -lnnopbase -lopapi"
//   g++ group_norm_backward.cpp -I$ASCEND_CUSTOM_PATH/include $libraries
//   ./a.out
#include "aclnnop/aclnn_group_norm.h"
#include "aclnnop/aclnn_group_norm_backward.h"
#include "device.h"

int main() {
  const Device device;
  const int64_t images = 2, channels = 4, height = 2, width = 3, groups = 2;
  const int64_t inner = height * width, size = images * channels * inner;
  const std::vector<int64_t> shape{images, channels, height, width};
  const DeviceTensor x(shape, numbers(size)), y(shape, std::vector<float>(size));
  const DeviceTensor gamma({channels}, {1, 2, 1, 2}), beta({channels}, {0, 0, 1, -1});
  const DeviceTensor mean({images, groups}, std::vector<float>(images * groups));
  const DeviceTensor rstd({images, groups}, std::vector<float>(images * groups));

  uint64_t workspace_size = 0;
  aclOpExecutor* executor = nullptr;
  CHECK(aclnnGroupNormGetWorkspaceSize(x.tensor, gamma.tensor, beta.tensor, images, channels, inner, groups, 1e-5,
                                       y.tensor, mean.tensor, rstd.tensor, &workspace_size, &executor));
  launch_and_wait(aclnnGroupNorm, workspace_size, executor, device.stream());

  // The gradient of sum(y * y) / 2 with respect to y is y itself.
  const bool wanted[] = {true, true, true};
  aclBoolArray* const output_mask = aclCreateBoolArray(wanted, 3);
  const DeviceTensor dx(shape, std::vector<float>(size));
  const DeviceTensor dgamma({channels}, std::vector<float>(channels)), dbeta({channels}, std::vector<float>(channels));
  CHECK(aclnnGroupNormBackwardGetWorkspaceSize(y.tensor, x.tensor, mean.tensor, rstd.tensor, gamma.tensor, images,
                                               channels, inner, groups, output_mask, dx.tensor, dgamma.tensor,
                                               dbeta.tensor, &workspace_size, &executor));
  launch_and_wait(aclnnGroupNormBackward, workspace_size, executor, device.stream());
  print("y", y);
  print("dx", dx);
  print("dgamma", dgamma);
  print("dbeta", dbeta);
  CHECK(aclDestroyBoolArray(output_mask));
}
