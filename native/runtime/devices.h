// How many devices this process has. All of them are this machine's processors and memory: devices of their own only in
// what programs keep on them.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/status.h"

namespace descend {

inline constexpr int32_t kMaxDevices = 64;

// The devices that this process sees, by their number in the machine: of as many as DESCEND_DEVICES says, 1 without it,
// those that ASCEND_RT_VISIBLE_DEVICES lists, all without it. Both are read until they are good, and then never again.
Status visible_devices(const std::vector<int32_t>** numbers);

// How many devices the machine has, whether or not this process sees them; 1 until visible_devices has told.
int32_t machine_devices();

// A device's number in the machine, and back; -1 for one that this process does not see.
int32_t number_of(int32_t device);
int32_t device_of(int32_t number);

// kInvalidDevice for a device that this process does not see.
Status check_device(int32_t device);

}  // namespace descend
