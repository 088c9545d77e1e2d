// How much memory this process has allocated on a device.
#pragma once

#include <algorithm>
#include <cstddef>

namespace descend::detail {

size_t device_share();  // of the machine's memory, or of the control group's: the same for each device

// How much is allocated on a device. Not thread-safe.
struct DeviceUsage {
  size_t used = 0, peak = 0;

  // False if the device has less left.
  [[nodiscard]] bool take(size_t bytes) {
    const size_t most = device_share();
    if (bytes > most || used > most - bytes) return false;
    used += bytes;
    peak = std::max(peak, used);
    return true;
  }
  void give_back(size_t bytes) { used -= bytes; }
};

}  // namespace descend::detail
