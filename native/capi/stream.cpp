#include "capi/stream.h"

#include <chrono>

#include "acl/acl_rt.h"
#include "capi/callback_queue.h"
#include "capi/context.h"
#include "capi/device_table.h"

namespace descend::capi {
namespace {

// If several streams failed, each synchronization of the device returns the failure of one of them.
Status take_failure(int32_t device) {
  for (const auto& stream : streams_of(device)) DESCEND_RETURN_IF_ERROR(stream->take_failure());
  return {};
}

Status create_stream(aclrtStream* stream, uint32_t priority, uint32_t flags) {
  constexpr uint32_t kKnown = ACL_STREAM_FAST_LAUNCH | ACL_STREAM_FAST_SYNC | ACL_STREAM_HUGE;
  if (stream == nullptr) return null_argument("stream");
  if ((flags & ~kKnown) != 0) return failure(Code::kInvalidParam, "flag is ", flags, ", which has bits that are none.");
  *stream =
      state().streams.insert(std::make_shared<DeviceStream>(current_device(), current_context(), priority, flags));
  return {};
}

Status destroy_stream(aclrtStream stream, bool force) {
  if (stream == nullptr) return {};
  if (const auto found = state().streams.find(stream); found && (*found)->runs_here()) throw WaitsForItself();
  const auto removed = state().streams.remove(stream);
  if (!removed) return stale("stream");
  if (force) (*removed)->drop_pending();
  (void)(*removed)->synchronize();
  abandon_callbacks(**removed);
  return {};
}

}  // namespace

Status read_timeout(int32_t milliseconds, std::optional<std::chrono::nanoseconds>* timeout) {
  if (milliseconds < -1) {
    return failure(Code::kInvalidParam, "timeout is ", milliseconds, " ms, but must be at least 0, or -1 for none.");
  }
  if (milliseconds >= 0) *timeout = std::chrono::milliseconds(milliseconds);
  return {};
}

std::shared_ptr<DeviceStream> find_device_stream(const void* handle) {
  if (handle != nullptr) return state().streams.find(handle).value_or(nullptr);
  if (!require_initialized().ok()) return nullptr;
  const int32_t device = current_device();
  return with_device(device, [&](DeviceState& now) {
    if (!now.default_stream) now.default_stream = std::make_shared<DeviceStream>(device, nullptr);
    return now.default_stream;
  });
}

Status get_device_stream(const void* handle, std::shared_ptr<DeviceStream>* stream) {
  *stream = find_device_stream(handle);
  return *stream ? Status{} : stale("stream");
}

Status get_stream(const void* handle, std::shared_ptr<Stream>* stream) {
  *stream = find_device_stream(handle);
  return *stream ? Status{} : stale("stream");
}

std::deque<std::shared_ptr<DeviceStream>> streams_of(int32_t device) {
  auto streams = state().streams.all();
  std::erase_if(streams, [&](const auto& stream) { return stream->device != device; });
  with_device(device, [&](const DeviceState& now) {
    if (now.default_stream) streams.push_back(now.default_stream);
  });
  return streams;
}

// The work of a stream that another thread is destroying is waited for, too: the caller may free its memory afterwards.
bool wait_for_device(int32_t device, std::optional<std::chrono::nanoseconds> timeout) {
  return wait_for_all_streams(timeout, device);
}

}  // namespace descend::capi

using namespace descend;
using namespace descend::capi;

aclError aclrtSynchronizeDevice() {
  return runtime_call("aclrtSynchronizeDevice", [] {
    const int32_t device = current_device();
    (void)wait_for_device(device);
    return take_failure(device);
  });
}

aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout) {
  return runtime_call("aclrtSynchronizeDeviceWithTimeout", [&]() -> Status {
    std::optional<std::chrono::nanoseconds> limit;
    DESCEND_RETURN_IF_ERROR(read_timeout(timeout, &limit));
    const int32_t device = current_device();
    if (wait_for_device(device, limit)) return take_failure(device);
    return failure(Code::kStreamSyncTimeout, "the device still had work after ", timeout, " ms.");
  });
}

aclError aclrtDeviceTaskAbort(int32_t deviceId, uint32_t timeout) {
  return runtime_call("aclrtDeviceTaskAbort", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_device(deviceId));
    std::optional<std::chrono::nanoseconds> limit;
    if (timeout > 0) limit = std::chrono::milliseconds(timeout);
    for (const auto& stream : streams_of(deviceId)) stream->drop_pending();
    if (wait_for_device(deviceId, limit)) return {};
    return failure(Code::kStreamSyncTimeout, "the device still ran a step after ", timeout, " ms.");
  });
}

aclError aclrtCreateStream(aclrtStream* stream) {
  return runtime_call("aclrtCreateStream", [&] { return create_stream(stream, 0, 0); });
}

aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t priority, uint32_t flag) {
  return runtime_call("aclrtCreateStreamWithConfig", [&] { return create_stream(stream, priority, flag); });
}

aclError aclrtDestroyStream(aclrtStream stream) {
  return runtime_call("aclrtDestroyStream", [&] { return destroy_stream(stream, false); });
}

aclError aclrtDestroyStreamForce(aclrtStream stream) {
  return runtime_call("aclrtDestroyStreamForce", [&] { return destroy_stream(stream, true); });
}

aclError aclrtSynchronizeStream(aclrtStream stream) {
  return runtime_call("aclrtSynchronizeStream", [&]() -> Status {
    std::shared_ptr<Stream> found;
    DESCEND_RETURN_IF_ERROR(get_stream(stream, &found));
    return found->synchronize();
  });
}

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout) {
  return runtime_call("aclrtSynchronizeStreamWithTimeout", [&]() -> Status {
    std::shared_ptr<Stream> found;
    std::optional<std::chrono::nanoseconds> limit;
    DESCEND_RETURN_IF_ERROR(get_stream(stream, &found));
    DESCEND_RETURN_IF_ERROR(read_timeout(timeout, &limit));
    Status status = found->synchronize(limit);
    if (status.code == Code::kStreamSyncTimeout) {
      return failure(status.code, "the stream still had work after ", timeout, " ms.");
    }
    return status;
  });
}

aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus* status) {
  return runtime_call("aclrtStreamQuery", [&]() -> Status {
    if (status == nullptr) return null_argument("status");
    std::shared_ptr<Stream> found;
    DESCEND_RETURN_IF_ERROR(get_stream(stream, &found));
    *status = found->idle() ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
    return {};
  });
}
