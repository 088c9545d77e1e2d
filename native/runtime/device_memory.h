// How much memory each device has, and how much of it is taken.
//
// The devices share this machine's memory, or that which the process's control group may use, evenly: so what all of
// them promise together is there. A device holds what was allocated on it by this process, used or not, and no more
// than its share can be allocated on it. Host memory (kHostSide) counts for no device and has no limit.
#pragma once

#include <algorithm>
#include <cstddef>

#include "runtime/status.h"

namespace descend {

struct DeviceMemory {
  size_t total = 0;  // the device's share
  size_t free = 0;   // what can still be allocated: of the share, and of what the system has available
  size_t used = 0, peak = 0;
};
DeviceMemory device_memory(int device);

// A claim to a device's memory, given back when it ends.
class MemoryClaim {
 public:
  MemoryClaim() = default;
  ~MemoryClaim();
  MemoryClaim(const MemoryClaim&) = delete;
  MemoryClaim& operator=(const MemoryClaim&) = delete;

  // False where the device has not so much left.
  [[nodiscard]] bool take(int device, size_t bytes);

 private:
  int device_ = 0;
  size_t bytes_ = 0;
};

namespace detail {

size_t device_share();  // what each device has

// What a device holds. Not for several threads at once.
struct DeviceUsage {
  size_t used = 0, peak = 0;

  // False where the device has not so much left.
  [[nodiscard]] bool take(size_t bytes) {
    const size_t most = device_share();
    if (bytes > most || used > most - bytes) return false;
    used += bytes;
    peak = std::max(peak, used);
    return true;
  }
  void give_back(size_t bytes) { used -= bytes; }
};
}  // namespace detail

}  // namespace descend
