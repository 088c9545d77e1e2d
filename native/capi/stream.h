// Streams by their handles.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>

#include "capi/device_stream.h"
#include "capi/state.h"

namespace descend::capi {

// The stream that a handle names; null names the device's default stream. Empty if there is none.
std::shared_ptr<DeviceStream> find_device_stream(const void* handle);

// The same, or a failure with ACL_ERROR_INVALID_RESOURCE_HANDLE.
Status get_device_stream(const void* handle, std::shared_ptr<DeviceStream>* stream);
Status get_stream(const void* handle, std::shared_ptr<Stream>* stream);

// Milliseconds, as CANN's waiting functions take them: -1 waits for ever.
Status read_timeout(int32_t milliseconds, std::optional<std::chrono::nanoseconds>* timeout);

// Every stream of a device, the default one included.
std::deque<std::shared_ptr<DeviceStream>> streams_of(int32_t device);

// Waits for the work on a device and leaves its failures for later. False if the time ran out.
bool wait_for_device(int32_t device, std::optional<std::chrono::nanoseconds> timeout = std::nullopt);

}  // namespace descend::capi
