#include "capi/operator_call.h"

#include "capi/capture.h"

namespace descend::capi {

Status check_and_plan(Executor& made, const uint64_t* workspace_size, aclOpExecutor* const* executor) {
  Call& call = made.call();
  const auto null = [&](const char* name) {
    return call.fail(Code::kParamNullptr, name, " is null, but must be given.");
  };
  if (workspace_size == nullptr) return null("workspaceSize");
  if (executor == nullptr) return null("executor");
  if (Status status = current_product(&call.product); !status.ok()) return call.fail(status.code, status.sentence);
  if (Status status = require_no_refusal(); !status.ok()) return call.fail(Code::kRuntimeError, status.sentence);
  if (Status status = require_no_capture(); !status.ok()) return call.fail(status.code, status.sentence);
  return made.prepare();
}

}  // namespace descend::capi
