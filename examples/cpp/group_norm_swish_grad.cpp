// Group norm with swish, forward and backward, on two images of four channels in two groups.
//
//   . "$(descend sdk)/set_env.sh"
//   libraries="-L$ASCEND_CUSTOM_PATH/lib64 -lascendcl -lnnopbase -lopapi"
//   g++ group_norm_swish_grad.cpp -I$ASCEND_CUSTOM_PATH/include $libraries
//   ./a.out
#include "aclnnop/aclnn_group_norm_swish.h"
#include "aclnnop/aclnn_group_norm_swish_grad.h"
#include "device.h"

int main() {
  const Device device;
  const int64_t images = 2, channels = 4, height = 2, width = 3, groups = 2;
  const int64_t size = images * channels * height * width;
  const std::vector<int64_t> shape{images, channels, height, width};
  char format[] = "NCHW";
  const DeviceTensor x(shape, numbers(size)), y(shape, std::vector<float>(size));
  const DeviceTensor gamma({channels}, {1, 2, 1, 2}), beta({channels}, {0, 0, 1, -1});
  const DeviceTensor mean({images, groups}, std::vector<float>(images * groups));
  const DeviceTensor rstd({images, groups}, std::vector<float>(images * groups));

  uint64_t workspace_size = 0;
  aclOpExecutor* executor = nullptr;
  CHECK(aclnnGroupNormSwishGetWorkspaceSize(x.tensor, gamma.tensor, beta.tensor, groups, format, 1e-5, true, 1.0,
                                            y.tensor, mean.tensor, rstd.tensor, &workspace_size, &executor));
  launch_and_wait(aclnnGroupNormSwish, workspace_size, executor, device.stream());

  const DeviceTensor dx(shape, std::vector<float>(size));
  const DeviceTensor dgamma({channels}, std::vector<float>(channels)), dbeta({channels}, std::vector<float>(channels));
  CHECK(aclnnGroupNormSwishGradGetWorkspaceSize(y.tensor, mean.tensor, rstd.tensor, x.tensor, gamma.tensor, beta.tensor,
                                                groups, format, 1.0, true, true, dx.tensor, dgamma.tensor, dbeta.tensor,
                                                &workspace_size, &executor));
  launch_and_wait(aclnnGroupNormSwishGrad, workspace_size, executor, device.stream());
  print("dx", dx);
  print("dgamma", dgamma);
  print("dbeta", dbeta);
}
