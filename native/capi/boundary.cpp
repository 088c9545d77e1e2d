#include "capi/boundary.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "acl/acl.h"
#include "descend.h"

namespace descend::capi {
namespace {

std::atomic<Life> current_life{Life::kBefore};
std::atomic<bool> refused_in_child{false};

// The thread's last failure. The sentence is an array, since destructors of a program's globals and of its threads may
// call, and fail, after all others have run. A longer sentence is cut.
thread_local char recent_sentence[4096];
thread_local aclError recent_code = ACL_SUCCESS;  // aclrtGetLastError sets it back to 0

// Ends a refused child. It is registered last, so exit() calls it before all other handlers.
[[maybe_unused]] void end_child(int status, void*) {
  std::fflush(nullptr);
  _exit(status);
}

void keep(const char* function, std::string_view sentence) {
  char* end = recent_sentence;
  char* const limit = recent_sentence + sizeof(recent_sentence) - 1;
  const auto append = [&](std::string_view text) {
    end = std::copy_n(text.data(), std::min(text.size(), static_cast<size_t>(limit - end)), end);
  };
  if (!sentence.starts_with(function)) {
    append(function);
    append(": ");
  }
  append(sentence);
  *end = '\0';
}

}  // namespace

Life life() { return current_life.load(std::memory_order_acquire); }
void set_life(Life now) { current_life = now; }

Status require_no_refusal() {
  if (!refused_in_child.load(std::memory_order_relaxed)) return {};
  return failure(Code::kUninitialize,
                 "this process was forked from one that uses the device, and does not have its threads; start it by "
                 "spawn or forkserver.");
}

Status require_initialized() {
  DESCEND_RETURN_IF_ERROR(require_no_refusal());
  const Life now = life();
  if (now == Life::kAlive) return {};
  return failure(Code::kUninitialize,
                 now == Life::kBefore ? "aclInit has not been called." : "aclFinalize has been called.");
}

int32_t report(const char* function, Code code, std::string_view sentence) noexcept {
  keep(function, sentence);
  return recent_code = static_cast<int32_t>(code);
}

}  // namespace descend::capi

using namespace descend::capi;

const char* aclGetRecentErrMsg() { return recent_sentence; }

// Errors are kept for threads alone: any other level has none.
aclError aclrtPeekAtLastError(aclrtLastErrLevel level) { return level == ACL_RT_THREAD_LEVEL ? recent_code : 0; }

aclError aclrtGetLastError(aclrtLastErrLevel level) {
  return level == ACL_RT_THREAD_LEVEL ? std::exchange(recent_code, ACL_SUCCESS) : ACL_SUCCESS;
}

int descendRefuseInChild() {
  refused_in_child = life() == Life::kAlive;
  if (!refused_in_child) return 0;
#ifdef __GLIBC__
  on_exit(end_child, nullptr);
#endif
  return 1;
}
