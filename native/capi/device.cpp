// Devices: which one a thread works on, and which may use the memory of which.
#include "acl/acl_rt.h"
#include "capi/context.h"
#include "capi/device_table.h"
#include "capi/state.h"
#include "capi/stream.h"

using namespace descend;
using namespace descend::capi;

namespace {

Status set_device(int32_t device) {
  DESCEND_RETURN_IF_ERROR(check_device(device));
  const aclrtContext context = with_device(device, [&](DeviceState& now) {
    if (now.default_context == nullptr) now.default_context = state().contexts.insert(Context{device});
    ++now.uses;
    return now.default_context;
  });
  set_current_context(context, device);
  return {};
}

// The last aclrtResetDevice destroys the default context and the streams in it, as CANN's documents say.
void end_default_context(aclrtContext context) {
  if (context == nullptr) return;
  (void)state().contexts.remove(context);
  context_removed();
  (void)state().streams.remove_if([&](const auto& stream) { return stream->context == context; });
}

Status reset_device(int32_t device, bool force) {
  DESCEND_RETURN_IF_ERROR(check_device(device));
  if (with_device(device, [](const DeviceState& now) { return now.uses == 0; })) {
    return failure(kContextRelease, "device ", device, " has not been set, or has been reset already.");
  }
  (void)wait_for_device(device);
  DeviceState last;  // its default stream is destroyed after the lock is released
  with_device(device, [&](DeviceState& now) {
    if (now.uses > 0) now.uses = force ? 0 : now.uses - 1;
    if (now.uses == 0) std::swap(now, last);
  });
  end_default_context(last.default_context);
  return {};
}

Status check_peers(int32_t device, int32_t peer) {
  DESCEND_RETURN_IF_ERROR(check_device(device));
  DESCEND_RETURN_IF_ERROR(check_device(peer));
  if (device != peer) return {};
  return failure(Code::kInvalidParam, "peerDeviceId is ", peer, ", the device itself, but must be another.");
}

Status set_peer(int32_t peer, bool reachable) {
  const int32_t device = current_device();
  DESCEND_RETURN_IF_ERROR(check_peers(device, peer));
  with_device(device, [&](DeviceState& now) { now.peers.set(static_cast<size_t>(peer), reachable); });
  return {};
}

}  // namespace

aclError aclrtGetDeviceCount(uint32_t* count) {
  return boundary("aclrtGetDeviceCount", [&]() -> Status {
    if (count == nullptr) return null_argument("count");
    const std::vector<int32_t>* numbers = nullptr;
    DESCEND_RETURN_IF_ERROR(visible_devices(&numbers));
    *count = static_cast<uint32_t>(numbers->size());
    return {};
  });
}

aclError aclrtSetDevice(int32_t deviceId) {
  return boundary("aclrtSetDevice", [&] { return set_device(deviceId); });
}

aclError aclrtGetDevice(int32_t* deviceId) {
  // Whether the thread's last failure says why it has no device. torch_npu asks for the device before it reads that.
  bool explained = false;
  const aclError code = boundary("aclrtGetDevice", [&]() -> Status {
    if (deviceId == nullptr) return null_argument("deviceId");
    DESCEND_RETURN_IF_ERROR(require_no_refusal());
    const int32_t device = current_device_or_none();
    if (device < 0) {
      const std::vector<int32_t>* numbers = nullptr;
      DESCEND_RETURN_IF_ERROR(visible_devices(&numbers));  // why none could be set
      explained = aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL) == static_cast<aclError>(Code::kInvalidDevice);
      if (explained) return {};
      return failure(kContextNull, "this thread has set no device and no context.");
    }
    *deviceId = device;
    return {};
  });
  return explained ? static_cast<aclError>(kContextNull) : code;
}

aclError aclrtResetDevice(int32_t deviceId) {
  return runtime_call("aclrtResetDevice", [&] { return reset_device(deviceId, false); });
}

aclError aclrtResetDeviceForce(int32_t deviceId) {
  return runtime_call("aclrtResetDeviceForce", [&] { return reset_device(deviceId, true); });
}

aclError aclrtDeviceCanAccessPeer(int32_t* canAccessPeer, int32_t deviceId, int32_t peerDeviceId) {
  return runtime_call("aclrtDeviceCanAccessPeer", [&]() -> Status {
    if (canAccessPeer == nullptr) return null_argument("canAccessPeer");
    DESCEND_RETURN_IF_ERROR(check_peers(deviceId, peerDeviceId));
    *canAccessPeer = 1;
    return {};
  });
}

aclError aclrtDeviceEnablePeerAccess(int32_t peerDeviceId, uint32_t flags) {
  return runtime_call("aclrtDeviceEnablePeerAccess", [&]() -> Status {
    if (flags != 0) return failure(Code::kInvalidParam, "flags is ", flags, ", but must be 0.");
    return set_peer(peerDeviceId, true);
  });
}

aclError aclrtDeviceDisablePeerAccess(int32_t peerDeviceId) {
  return runtime_call("aclrtDeviceDisablePeerAccess", [&] { return set_peer(peerDeviceId, false); });
}

aclError aclrtDevicePeerAccessStatus(int32_t deviceId, int32_t peerDeviceId, int32_t* status) {
  return runtime_call("aclrtDevicePeerAccessStatus", [&]() -> Status {
    if (status == nullptr) return null_argument("status");
    DESCEND_RETURN_IF_ERROR(check_peers(deviceId, peerDeviceId));
    *status =
        with_device(deviceId, [&](DeviceState& now) { return now.peers.test(static_cast<size_t>(peerDeviceId)); });
    return {};
  });
}
