// Group norm and SiLU, on two images of four channels in two groups, and without SiLU by the second version.
//
//   . "$(descend sdk)/set_env.sh"
//   libraries="-L$ASCEND_CUSTOM_PATH/lib64 -lascendcl -lnnopbase -lopapi"
//   g++ group_norm_silu.cpp -I$ASCEND_CUSTOM_PATH/include $libraries
//   ./a.out
#include "aclnnop/aclnn_group_norm_silu.h"
#include "device.h"

int main() {
  const Device device;
  const int64_t images = 2, channels = 4, height = 2, width = 3, groups = 2;
  const int64_t size = images * channels * height * width;
  const std::vector<int64_t> shape{images, channels, height, width};
  const DeviceTensor x(shape, numbers(size)), activated(shape, std::vector<float>(size));
  const DeviceTensor plain(shape, std::vector<float>(size));
  const DeviceTensor gamma({channels}, {1, 2, 1, 2}), beta({channels}, {0, 0, 1, -1});
  const DeviceTensor mean({images, groups}, std::vector<float>(images * groups));
  const DeviceTensor rstd({images, groups}, std::vector<float>(images * groups));

  uint64_t workspace_size = 0;
  aclOpExecutor* executor = nullptr;
  CHECK(aclnnGroupNormSiluGetWorkspaceSize(x.tensor, gamma.tensor, beta.tensor, groups, 1e-5, activated.tensor,
                                           mean.tensor, rstd.tensor, &workspace_size, &executor));
  launch_and_wait(aclnnGroupNormSilu, workspace_size, executor, device.stream());
  CHECK(aclnnGroupNormSiluV2GetWorkspaceSize(x.tensor, gamma.tensor, beta.tensor, groups, 1e-5, false, plain.tensor,
                                             mean.tensor, rstd.tensor, &workspace_size, &executor));
  launch_and_wait(aclnnGroupNormSiluV2, workspace_size, executor, device.stream());
  print("activated", activated);
  print("plain", plain);
  print("mean", mean);
  print("rstd", rstd);
}
