// Devices as programs see them: which one a thread works on, and what is kept for each.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "acl/acl_rt.h"
#include "capi/state.h"
#include "runtime/devices.h"

namespace descend::capi {

// The calling thread's device: that of its current context. A thread that has set neither works on device 0.
int32_t current_device();
// The same, but -1 where the thread has set neither.
int32_t current_device_or_none();
// The calling thread's context, else the default one of its device.
aclrtContext current_context();
void set_current_context(aclrtContext context, int32_t device);
// To be called when a context has been removed: threads look again whether theirs is alive.
void context_removed();

// A stream on its device.
struct DeviceStream : Stream {
  DeviceStream(int32_t on_device, aclrtContext in_context) : device(on_device), context(in_context) {}
  const int32_t device;
  const aclrtContext context;  // in which it was created; null for the device's default stream
};

struct DeviceState {
  uint32_t uses = 0;  // calls of aclrtSetDevice that aclrtResetDevice has not answered
  aclrtContext default_context = nullptr;
  std::shared_ptr<DeviceStream> default_stream;
  std::bitset<kMaxDevices> peers;  // the devices whose memory this one is to reach
};

struct DeviceTable {
  std::mutex mutex;
  std::array<DeviceState, kMaxDevices> devices;
};
DeviceTable& device_table();

// Calls use(DeviceState&) under the lock of all devices. The tables of handles may be used in it, their locks are
// inner.
template <class Use>
auto with_device(int32_t device, Use use) {
  DeviceTable& table = device_table();
  const std::lock_guard lock(table.mutex);
  return use(table.devices[static_cast<size_t>(device)]);
}

// Every stream of a device, the default one included.
std::deque<std::shared_ptr<DeviceStream>> streams_of(int32_t device);

// Waits for the work on a device, leaving failures for later; false if the timeout ran out.
bool wait_for_device(int32_t device, std::optional<std::chrono::nanoseconds> timeout = std::nullopt);

}  // namespace descend::capi
