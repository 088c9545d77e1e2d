// Functions of aclnn that another library computes (descend_composer.h). The calls cross as JSON.
#pragma once

#include <memory>
#include <string>

#include "aclnn/aclnn_base.h"
#include "capi/boundary.h"
#include "capi/state.h"

namespace descend::capi {

// The arguments of a call, one after another.
class CallText {
 public:
  void add(const aclTensor* handle);
  void add(const aclTensorList* handle);
  void add(const aclIntArray* handle);
  void add(const char* text);
  void add(int64_t number);
  void add(int32_t number) { add(int64_t{number}); }
  void add(double number);
  void add(float number) { add(double{number}); }
  void add(bool flag);

  std::string take() { return std::move(text_); }

 private:
  void next();
  void add_tensor(const aclTensor* handle);

  std::string text_;
};

Status plan_composed_text(const char* function, std::string arguments, uint64_t* workspace_size,
                          aclOpExecutor** executor);

// Phase 1.
template <class... Arguments>
aclnnStatus plan_composed(const char* function, uint64_t* workspace_size, aclOpExecutor** executor,
                          Arguments... arguments) noexcept {
  return boundary(
      function,
      [&]() -> Status {
        CallText text;
        (text.add(arguments), ...);
        return plan_composed_text(function, text.take(), workspace_size, executor);
      },
      Code::kRuntimeError, Code::kInner);
}

// Phase 2. The call runs on the caller's thread, once the stream is idle, unless phase 1 has computed it. It needs no
// workspace.
aclnnStatus launch_composed(const char* function, void* workspace, uint64_t workspace_size, aclOpExecutor* executor,
                            aclrtStream stream) noexcept;

}  // namespace descend::capi
