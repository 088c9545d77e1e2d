#include "capi/capture.h"

#include "capi/boundary.h"
#include "descend.h"

namespace descend::capi {
namespace {

thread_local bool refused = false;

}  // namespace

Status require_no_capture() {
  if (!refused) return {};
  return failure(Code::kRuntimeError,
                 "this thread captures a graph, which records PyTorch's operators: this call is none of them.");
}

}  // namespace descend::capi

int descendRefuseInCapture(int refuse) {
  const int before = descend::capi::refused ? 1 : 0;
  descend::capi::refused = refuse != 0;
  return before;
}
