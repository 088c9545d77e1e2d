// Contexts and their options.
#include "acl/acl_rt.h"
#include "capi/state.h"

namespace descend::capi {
namespace {

std::mutex default_context_mutex;
aclrtContext default_context = nullptr;  // of threads that have set none
thread_local aclrtContext thread_context = nullptr;

Status stale() { return failure(Code::kInvalidResourceHandle, "context is not one, or has been destroyed already."); }

aclrtContext current_context() {
  if (thread_context != nullptr && state().contexts.find(thread_context)) return thread_context;
  const std::lock_guard lock(default_context_mutex);
  if (default_context == nullptr || !state().contexts.find(default_context)) {
    default_context = state().contexts.insert(kDefaultOptions);
  }
  return default_context;
}

}  // namespace

Status check_option(aclSysParamOpt opt) {
  if (opt <= ACL_OPT_STRONG_CONSISTENCY) return {};
  return failure(Code::kInvalidParam, "opt is ", static_cast<int>(opt),
                 ", but must be ACL_OPT_DETERMINISTIC, ACL_OPT_ENABLE_DEBUG_KERNEL or ACL_OPT_STRONG_CONSISTENCY.");
}

Status check_option(aclSysParamOpt opt, int64_t value) {
  DESCEND_RETURN_IF_ERROR(check_option(opt));
  if (value == 0 || value == 1) return {};
  return failure(Code::kInvalidParam, "value is ", value, ", but must be 0 or 1.");
}

void forget_contexts() {
  const std::lock_guard lock(default_context_mutex);
  default_context = nullptr;
}

void lock_contexts() { default_context_mutex.lock(); }
void unlock_contexts() { default_context_mutex.unlock(); }

}  // namespace descend::capi

using namespace descend;
using namespace descend::capi;

aclError aclrtCreateContext(aclrtContext* context, int32_t deviceId) {
  return runtime_call("aclrtCreateContext", [&]() -> Status {
    if (context == nullptr) return null_argument("context");
    if (deviceId != 0) {
      return failure(Code::kInvalidDevice, "device ", deviceId, " does not exist; the only one is 0.");
    }
    *context = thread_context = state().contexts.insert(kDefaultOptions);
    return {};
  });
}

aclError aclrtDestroyContext(aclrtContext context) {
  return runtime_call("aclrtDestroyContext", [&]() -> Status {
    if (context == nullptr || state().contexts.remove(context)) return {};
    return stale();
  });
}

aclError aclrtSetCurrentContext(aclrtContext context) {
  return runtime_call("aclrtSetCurrentContext", [&]() -> Status {
    if (context == nullptr) return null_argument("context");
    if (!state().contexts.find(context)) return stale();
    thread_context = context;
    return {};
  });
}

aclError aclrtGetCurrentContext(aclrtContext* context) {
  return runtime_call("aclrtGetCurrentContext", [&]() -> Status {
    if (context == nullptr) return null_argument("context");
    *context = current_context();
    return {};
  });
}

aclError aclrtCtxGetSysParamOpt(aclSysParamOpt opt, int64_t* value) {
  return runtime_call("aclrtCtxGetSysParamOpt", [&]() -> Status {
    if (value == nullptr) return null_argument("value");
    DESCEND_RETURN_IF_ERROR(check_option(opt));
    const bool alive = state().contexts.with(current_context(), [&](const Options& options) { *value = options[opt]; });
    return alive ? Status{} : stale();
  });
}

aclError aclrtCtxSetSysParamOpt(aclSysParamOpt opt, int64_t value) {
  return runtime_call("aclrtCtxSetSysParamOpt", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_option(opt, value));
    const bool alive = state().contexts.with(current_context(), [&](Options& options) { options[opt] = value; });
    return alive ? Status{} : stale();
  });
}
