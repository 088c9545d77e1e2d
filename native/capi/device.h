// Devices as programs see them: which one a thread works on, and what is kept for each.
#pragma once

#include <array>
#include <atomic>
#include <bitset>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "acl/acl_rt.h"
#include "capi/state.h"
#include "runtime/devices.h"

namespace descend::capi {

struct ReportQueue;

// The calling thread's device: that of its current context. A thread that has set neither works on device 0.
int32_t current_device();
// The same, but -1 where the thread has set neither.
int32_t current_device_or_none();
// The calling thread's context, else the default one of its device.
aclrtContext current_context();
void set_current_context(aclrtContext context, int32_t device);
// To be called when a context has been removed: threads look again whether theirs is alive.
void context_removed();

// The most of each kind of core, as aclrtDevResLimitType counts them; 0 where nothing has been set.
using CoreLimits = std::array<std::atomic<uint32_t>, 2>;

// A stream on its device, and what programs set on it.
struct DeviceStream : Stream {
  DeviceStream(int32_t on_device, aclrtContext in_context, uint32_t with_priority = 0, uint32_t with_flags = 0);
  const int32_t device;
  const aclrtContext context;  // in which it was created; null for the device's default stream
  const int32_t id;            // of the process, from 0
  const uint32_t flags;
  std::atomic<uint32_t> priority;
  std::atomic<uint32_t> tag{0};
  std::atomic<uint32_t> overflow_switch{0};
  std::atomic<uint64_t> failure_mode{ACL_CONTINUE_ON_FAILURE};
  CoreLimits limits{};
  std::shared_ptr<ReportQueue> reports;  // whose thread runs its callbacks; callback.cpp guards it
};

struct DeviceState {
  std::array<uint32_t, 2> limits{};
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

// The stream of a handle, or of the default one where that is null.
Status get_device_stream(const void* handle, std::shared_ptr<DeviceStream>* stream);

std::shared_ptr<DeviceStream> find_device_stream(const void* handle);  // empty where there is none

// What is still to be called back on a stream that ends is a failure.
void end_reports(DeviceStream& stream);

Status stale(const char* what);
// Milliseconds as CANN's waits have them: -1 waits for ever.
Status read_timeout(int32_t milliseconds, std::optional<std::chrono::nanoseconds>* timeout);

// Every stream of a device, the default one included.
std::deque<std::shared_ptr<DeviceStream>> streams_of(int32_t device);

// Waits for the work on a device, leaving failures for later; false if the timeout ran out.
bool wait_for_device(int32_t device, std::optional<std::chrono::nanoseconds> timeout = std::nullopt);

}  // namespace descend::capi
