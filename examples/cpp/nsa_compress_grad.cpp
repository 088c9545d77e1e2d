// The compression of native sparse attention, forward and backward: two sequences of 32 and 64 tokens, windows of 32
// tokens, one every 16.
//
//   . "$(descend sdk)/set_env.sh"
//   libraries="-L$ASCEND_CUSTOM_PATH/lib64 -lascendcl -lnnopbase -lopapi"
//   g++ nsa_compress_grad.cpp -I$ASCEND_CUSTOM_PATH/include $libraries
//   ./a.out
#include "aclnnop/aclnn_nsa_compress.h"
#include "aclnnop/aclnn_nsa_compress_grad.h"
#include "device.h"

int main() {
  const Device device;
  const int64_t tokens = 96, heads = 1, depth = 16, block = 32, stride = 16;
  const int64_t ends[] = {32, 96}, windows = 1 + 3;
  char layout[] = "TND";
  aclIntArray* const lengths = aclCreateIntArray(ends, 2);
  const DeviceTensor x({tokens, heads, depth}, numbers(tokens * depth), ACL_FLOAT16);
  const DeviceTensor weight({block, heads}, numbers(block, 1), ACL_FLOAT16);
  const DeviceTensor y({windows, heads, depth}, std::vector<float>(windows * depth), ACL_FLOAT16);

  uint64_t workspace_size = 0;
  aclOpExecutor* executor = nullptr;
  CHECK(aclnnNsaCompressGetWorkspaceSize(x.tensor, weight.tensor, lengths, layout, block, stride, 0, y.tensor,
                                         &workspace_size, &executor));
  launch_and_wait(aclnnNsaCompress, workspace_size, executor, device.stream());

  // The order of the arguments is not the forward's.
  const DeviceTensor dx({tokens, heads, depth}, std::vector<float>(tokens * depth), ACL_FLOAT16);
  const DeviceTensor dweight({block, heads}, std::vector<float>(block), ACL_FLOAT16);
  CHECK(aclnnNsaCompressGradGetWorkspaceSize(y.tensor, x.tensor, weight.tensor, lengths, block, stride, 0, layout,
                                             dx.tensor, dweight.tensor, &workspace_size, &executor));
  launch_and_wait(aclnnNsaCompressGrad, workspace_size, executor, device.stream());
  print("dweight", dweight);
  CHECK(aclDestroyIntArray(lengths));
}
