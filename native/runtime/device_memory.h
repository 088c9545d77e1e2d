// How much memory each device has, and how much of it is taken.
//
// Each device has an equal share of this machine's memory, or of what the process's control group may use. So the
// devices together do not promise more than there is. What this process allocates on a device counts, used or not, up
// to the device's share. Host memory (kHostSide) counts for no device and has no limit.
#pragma once

#include <cstddef>

#include "runtime/status.h"

namespace descend {

struct DeviceMemory {
  size_t total = 0;  // the device's share
  size_t free = 0;   // what can still be allocated: limited by the share and by what the system has available
  size_t used = 0, peak = 0;
};
DeviceMemory device_memory(int device);

// Counts memory for a device as long as it lives.
class MemoryClaim {
 public:
  MemoryClaim() = default;
  ~MemoryClaim();
  MemoryClaim(const MemoryClaim&) = delete;
  MemoryClaim& operator=(const MemoryClaim&) = delete;

  // False if the device has less left.
  [[nodiscard]] bool take(int device, size_t bytes);

 private:
  int device_ = 0;
  size_t bytes_ = 0;
};

}  // namespace descend
