#include "capi/context.h"

#include <algorithm>
#include <atomic>

#include "capi/device_table.h"
#include "capi/settings.h"
#include "capi/state.h"

namespace descend::capi {
namespace {

// What a thread has set. Whether its context still exists is checked only after some context was removed.
struct Current {
  aclrtContext context = nullptr;
  int32_t device = -1;
  uint64_t removals = 0;  // at the last check
};
thread_local Current current;
std::atomic<uint64_t> removals{0};  // of contexts, in the process

bool alive(aclrtContext context) {
  return state().contexts.with(context, [](const Context&) {});
}

aclrtContext default_context(int32_t device) {
  return with_device(device, [&](DeviceState& now) {
    if (now.default_context == nullptr) now.default_context = state().contexts.insert(Context{device});
    return now.default_context;
  });
}

bool is_default(aclrtContext context, int32_t device) {
  return with_device(device, [&](const DeviceState& now) { return now.default_context == context; });
}

}  // namespace

int32_t current_device_or_none() {
  if (current.device < 0) return -1;
  const uint64_t now = removals.load(std::memory_order_acquire);
  if (current.removals == now) return current.device;
  if (!alive(current.context)) {  // falls back to the default context of its device, if there is one
    current.context = with_device(current.device, [](const DeviceState& of) { return of.default_context; });
    if (current.context == nullptr) current.device = -1;
  }
  current.removals = now;
  return current.device;
}

int32_t current_device() { return std::max(current_device_or_none(), 0); }

aclrtContext current_context() { return current_device_or_none() < 0 ? default_context(0) : current.context; }

void set_current_context(aclrtContext context, int32_t device) {
  current = {context, device, removals.load(std::memory_order_acquire)};
}

void context_removed() { removals.fetch_add(1, std::memory_order_acq_rel); }

}  // namespace descend::capi

using namespace descend;
using namespace descend::capi;

aclError aclrtCreateContext(aclrtContext* context, int32_t deviceId) {
  return runtime_call("aclrtCreateContext", [&]() -> Status {
    if (context == nullptr) return null_argument("context");
    DESCEND_RETURN_IF_ERROR(check_device(deviceId));
    *context = state().contexts.insert(Context{deviceId});
    set_current_context(*context, deviceId);
    return {};
  });
}

aclError aclrtDestroyContext(aclrtContext context) {
  return runtime_call("aclrtDestroyContext", [&]() -> Status {
    if (context == nullptr) return {};
    const auto found = state().contexts.find(context);
    if (!found) return stale("context");
    if (is_default(context, found->device)) {
      return failure(Code::kInvalidParam, "context is the default one of device ", found->device,
                     ", which ends when the device is reset.");
    }
    if (!state().contexts.remove(context)) return stale("context");
    context_removed();
    return {};
  });
}

aclError aclrtSetCurrentContext(aclrtContext context) {
  return runtime_call("aclrtSetCurrentContext", [&]() -> Status {
    if (context == nullptr) return null_argument("context");
    const auto found = state().contexts.find(context);
    if (!found) return stale("context");
    set_current_context(context, found->device);
    return {};
  });
}

// A thread that has set a device may call this at any time, even after aclFinalize. Threads of torch_npu do so at the
// end of the process, and abort if the call fails.
aclError aclrtGetCurrentContext(aclrtContext* context) {
  return boundary("aclrtGetCurrentContext", [&]() -> Status {
    if (current_device_or_none() < 0) DESCEND_RETURN_IF_ERROR(require_initialized());
    if (context == nullptr) return null_argument("context");
    *context = current_context();
    return {};
  });
}

aclError aclrtCtxGetSysParamOpt(aclSysParamOpt opt, int64_t* value) {
  return runtime_call("aclrtCtxGetSysParamOpt", [&]() -> Status {
    if (value == nullptr) return null_argument("value");
    DESCEND_RETURN_IF_ERROR(check_option(opt));
    const bool alive =
        state().contexts.with(current_context(), [&](const Context& found) { *value = found.options[opt]; });
    return alive ? Status{} : stale("context");
  });
}

aclError aclrtCtxSetSysParamOpt(aclSysParamOpt opt, int64_t value) {
  return runtime_call("aclrtCtxSetSysParamOpt", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_option(opt, value));
    const bool alive = state().contexts.with(current_context(), [&](Context& found) { found.options[opt] = value; });
    return alive ? Status{} : stale("context");
  });
}
