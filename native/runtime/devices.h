// How many devices this process has. All of them are this machine's processors and memory. They differ only in the
// contexts, streams and allocations that programs make on them.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/status.h"

namespace descend {

inline constexpr int32_t kMaxDevices = 64;

// The devices that this process sees, by their number in the machine. The machine has DESCEND_DEVICES devices, 1 by
// default. ASCEND_RT_VISIBLE_DEVICES lists those that the process sees, all by default. Both variables are read in each
// call until one call finds them valid, and not after that.
Status visible_devices(const std::vector<int32_t>** numbers);

// How many devices the machine has, whether or not this process sees them; 1 until visible_devices has succeeded.
int32_t machine_devices();

// Converts a device of this process to its number in the machine, and back. -1 if this process does not see it.
int32_t number_of(int32_t device);
int32_t device_of(int32_t number);

// kInvalidDevice for a device that this process does not see.
Status check_device(int32_t device);

}  // namespace descend
