// What is kept for each device.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <memory>
#include <mutex>

#include "acl/acl_rt.h"
#include "runtime/devices.h"

namespace descend::capi {

struct DeviceStream;  // device_stream.h

struct DeviceState {
  std::array<uint32_t, 2> limits{};  // the most cores of each kind, by aclrtDevResLimitType; 0: not set
  uint32_t uses = 0;                 // calls of aclrtSetDevice that no aclrtResetDevice has undone
  aclrtContext default_context = nullptr;
  std::shared_ptr<DeviceStream> default_stream;
  std::bitset<kMaxDevices> peers;  // the devices whose memory this one may use
};

struct DeviceTable {
  std::mutex mutex;
  std::array<DeviceState, kMaxDevices> devices;
};
DeviceTable& device_table();

// Calls use(DeviceState&) under the lock of all devices. The locks of the tables of handles may be taken inside it.
template <class Use>
auto with_device(int32_t device, Use use) {
  DeviceTable& table = device_table();
  const std::lock_guard lock(table.mutex);
  return use(table.devices[static_cast<size_t>(device)]);
}

void lock_devices();  // for a fork
void unlock_devices();
void forget_devices();  // for aclFinalize

}  // namespace descend::capi
