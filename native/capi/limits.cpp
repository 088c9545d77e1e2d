// Limits on the cores of a device, a stream and a thread, and on waiting times. Limits on cores are stored and
// returned, for programs that plan their work by them. They do not change how many threads the library uses: that is
// DESCEND_NUM_THREADS. So limits that an Ascend would take are taken on a machine with fewer cores, too.
#include <algorithm>

#include "capi/context.h"
#include "capi/device_table.h"
#include "capi/settings.h"
#include "capi/stream.h"
#include "runtime/machine.h"

using namespace descend;
using namespace descend::capi;

namespace {

// The stream whose limits this thread uses. Without destructors, since other destructors of the thread may still call.
thread_local bool uses_stream = false;
thread_local aclrtStream used_stream = nullptr;

Status check_type(aclrtDevResLimitType type) {
  if (type <= ACL_RT_DEV_RES_VECTOR_CORE) return {};
  return failure(Code::kInvalidParam, "type is ", static_cast<int>(type),
                 ", but must be ACL_RT_DEV_RES_CUBE_CORE or ACL_RT_DEV_RES_VECTOR_CORE.");
}

constexpr int kMostCores = 64;  // of a kind, of an Ascend

Status check_limit(aclrtDevResLimitType type, uint32_t value) {
  DESCEND_RETURN_IF_ERROR(check_type(type));
  const auto most = static_cast<uint32_t>(std::max(usable_cores(), kMostCores));
  if (value >= 1 && value <= most) return {};
  return failure(Code::kInvalidParam, "value is ", value, ", but must be from 1 to ", most,
                 ", the cores of a large device.");
}

uint32_t device_limit(int32_t device, aclrtDevResLimitType type) {
  const uint32_t kept = with_device(device, [&](const DeviceState& now) { return now.limits[type]; });
  return kept != 0 ? kept : static_cast<uint32_t>(usable_cores());
}

uint32_t stream_limit(const DeviceStream& stream, aclrtDevResLimitType type) {
  const uint32_t kept = stream.limits[type];
  return kept != 0 ? kept : device_limit(stream.device, type);
}

}  // namespace

aclError aclrtGetDeviceResLimit(int32_t deviceId, aclrtDevResLimitType type, uint32_t* value) {
  return runtime_call("aclrtGetDeviceResLimit", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_device(deviceId));
    DESCEND_RETURN_IF_ERROR(check_type(type));
    if (value == nullptr) return null_argument("value");
    *value = device_limit(deviceId, type);
    return {};
  });
}

aclError aclrtSetDeviceResLimit(int32_t deviceId, aclrtDevResLimitType type, uint32_t value) {
  return runtime_call("aclrtSetDeviceResLimit", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_device(deviceId));
    DESCEND_RETURN_IF_ERROR(check_limit(type, value));
    with_device(deviceId, [&](DeviceState& now) { now.limits[type] = value; });
    return {};
  });
}

aclError aclrtResetDeviceResLimit(int32_t deviceId) {
  return runtime_call("aclrtResetDeviceResLimit", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_device(deviceId));
    with_device(deviceId, [](DeviceState& now) { now.limits = {}; });
    return {};
  });
}

aclError aclrtGetStreamResLimit(aclrtStream stream, aclrtDevResLimitType type, uint32_t* value) {
  return runtime_call("aclrtGetStreamResLimit", [&]() -> Status {
    std::shared_ptr<DeviceStream> found;
    DESCEND_RETURN_IF_ERROR(get_device_stream(stream, &found));
    DESCEND_RETURN_IF_ERROR(check_type(type));
    if (value == nullptr) return null_argument("value");
    *value = stream_limit(*found, type);
    return {};
  });
}

aclError aclrtSetStreamResLimit(aclrtStream stream, aclrtDevResLimitType type, uint32_t value) {
  return runtime_call("aclrtSetStreamResLimit", [&]() -> Status {
    std::shared_ptr<DeviceStream> found;
    DESCEND_RETURN_IF_ERROR(get_device_stream(stream, &found));
    DESCEND_RETURN_IF_ERROR(check_limit(type, value));
    found->limits[type] = value;
    return {};
  });
}

aclError aclrtResetStreamResLimit(aclrtStream stream) {
  return runtime_call("aclrtResetStreamResLimit", [&]() -> Status {
    std::shared_ptr<DeviceStream> found;
    DESCEND_RETURN_IF_ERROR(get_device_stream(stream, &found));
    for (auto& limit : found->limits) limit = 0;
    return {};
  });
}

aclError aclrtUseStreamResInCurrentThread(aclrtStream stream) {
  return runtime_call("aclrtUseStreamResInCurrentThread", [&]() -> Status {
    std::shared_ptr<DeviceStream> found;
    DESCEND_RETURN_IF_ERROR(get_device_stream(stream, &found));
    uses_stream = true;
    used_stream = stream;
    return {};
  });
}

aclError aclrtUnuseStreamResInCurrentThread(aclrtStream stream) {
  return runtime_call("aclrtUnuseStreamResInCurrentThread", [&]() -> Status {
    std::shared_ptr<DeviceStream> found;
    DESCEND_RETURN_IF_ERROR(get_device_stream(stream, &found));
    if (used_stream == stream) uses_stream = false;
    return {};
  });
}

aclError aclrtGetResInCurrentThread(aclrtDevResLimitType type, uint32_t* value) {
  return runtime_call("aclrtGetResInCurrentThread", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_type(type));
    if (value == nullptr) return null_argument("value");
    const auto stream = uses_stream ? find_device_stream(used_stream) : nullptr;
    *value = stream ? stream_limit(*stream, type) : device_limit(current_device(), type);
    return {};
  });
}

aclError aclrtSetOpWaitTimeout(uint32_t timeout) {
  return runtime_call("aclrtSetOpWaitTimeout", [&]() -> Status {
    with_settings([&](Settings& now) {
      now.wait_limit.reset();
      if (timeout > 0) now.wait_limit = std::chrono::seconds(timeout);
    });
    return {};
  });
}

aclError aclrtSetOpExecuteTimeOut(uint32_t) {
  return runtime_call("aclrtSetOpExecuteTimeOut", []() -> Status { return {}; });
}

aclError aclrtSetOpExecuteTimeOutWithMs(uint32_t) {
  return runtime_call("aclrtSetOpExecuteTimeOutWithMs", []() -> Status { return {}; });
}

aclError aclrtSetOpExecuteTimeOutV2(uint64_t, uint64_t* actualTimeout) {
  return runtime_call("aclrtSetOpExecuteTimeOutV2", [&]() -> Status {
    if (actualTimeout == nullptr) return null_argument("actualTimeout");
    *actualTimeout = UINT64_MAX;
    return {};
  });
}

aclError aclrtGetOpExecuteTimeout(uint32_t* const timeoutMs) {
  return runtime_call("aclrtGetOpExecuteTimeout", [&]() -> Status {
    if (timeoutMs == nullptr) return null_argument("timeoutMs");
    *timeoutMs = UINT32_MAX;
    return {};
  });
}
