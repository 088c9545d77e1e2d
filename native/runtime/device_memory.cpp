#include "runtime/device_memory.h"

#include <algorithm>
#include <mutex>

#include "runtime/machine.h"
#include "runtime/memory_registry.h"

namespace descend {
DeviceMemory device_memory(int device) {
  DeviceMemory memory;
  memory.total = detail::device_share();
  size_t all_used = 0;
  {
    detail::MemoryRegistry& registry = detail::memory_registry();
    const std::lock_guard lock(registry.mutex);
    memory.used = registry.usage[static_cast<size_t>(device)].used;
    memory.peak = registry.usage[static_cast<size_t>(device)].peak;
    for (const detail::DeviceUsage& usage : registry.usage) all_used += usage.used;
  }
  // The devices' memory is of two parts. Pages that were touched are already missing in what the system has available;
  // the others are not. The growth of the process's resident memory since the first call is taken as the touched part.
  static const size_t at_first = resident_memory();
  const size_t now = resident_memory();
  const size_t touched = std::min(all_used, now > at_first ? now - at_first : 0);
  const size_t available = available_memory() + touched;  // as it would be if nothing were allocated on the devices
  memory.free = std::min(memory.total - memory.used, available - std::min(available, all_used));
  return memory;
}

bool MemoryClaim::take(int device, size_t bytes) {
  if (device < 0) return true;
  detail::MemoryRegistry& registry = detail::memory_registry();
  const std::lock_guard lock(registry.mutex);
  if (!registry.usage[static_cast<size_t>(device)].take(bytes)) return false;
  device_ = device;
  bytes_ = bytes;
  return true;
}

MemoryClaim::~MemoryClaim() {
  if (bytes_ == 0) return;
  detail::MemoryRegistry& registry = detail::memory_registry();
  const std::lock_guard lock(registry.mutex);
  registry.usage[static_cast<size_t>(device_)].give_back(bytes_);
}

}  // namespace descend
