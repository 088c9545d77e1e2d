#include "runtime/device_usage.h"

#include <cstdint>

#include "runtime/devices.h"
#include "runtime/machine.h"

namespace descend::detail {
namespace {

// The memory of the machine, or of the control group. It does not change while a process runs.
size_t all_memory() {
  static const size_t bytes = usable_memory();
  return bytes > 0 ? bytes : SIZE_MAX;  // unknown: no limit
}

}  // namespace

size_t device_share() { return all_memory() / static_cast<size_t>(machine_devices()); }

}  // namespace descend::detail
