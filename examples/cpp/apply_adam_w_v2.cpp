// Three steps of AdamW, in place.
//
//   . "$(descend sdk)/set_env.sh"
//   libraries="-L$ASCEND_CUSTOM_PATH/lib64 -lascendcl -lnnopbase -lopapi"
//   g++ apply_adam_w_v2.cpp -I$ASCEND_CUSTOM_PATH/include $libraries
//   ./a.out
#include "aclnnop/aclnn_apply_adam_w_v2.h"
#include "device.h"

int main() {
  const Device device;
  const int64_t rows = 3, columns = 8, size = rows * columns;
  const DeviceTensor var({rows, columns}, numbers(size)), grad({rows, columns}, numbers(size, 1));
  const DeviceTensor m({rows, columns}, std::vector<float>(size)), v({rows, columns}, std::vector<float>(size));

  for (int done = 0; done < 3; ++done) {
    const DeviceTensor step({1}, {static_cast<float>(done)});  // the operator adds 1
    uint64_t workspace_size = 0;
    aclOpExecutor* executor = nullptr;
    CHECK(aclnnApplyAdamWV2GetWorkspaceSize(var.tensor, m.tensor, v.tensor, nullptr, grad.tensor, step.tensor, 0.1f,
                                            0.9f, 0.99f, 0.01f, 1e-6f, false, false, &workspace_size, &executor));
    launch_and_wait(aclnnApplyAdamWV2, workspace_size, executor, device.stream());
  }
  print("var", var);
  print("m", m);
  print("v", v);
}
