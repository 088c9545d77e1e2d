#include "capi/device_table.h"

#include "runtime/immortal.h"

namespace descend::capi {
namespace {

Immortal<DeviceTable> table;  // destructors of a program's globals may run after ours

}  // namespace

DeviceTable& device_table() { return *table; }

void lock_devices() { table->mutex.lock(); }
void unlock_devices() { table->mutex.unlock(); }

void forget_devices() {
  std::array<DeviceState, kMaxDevices> last;  // its streams are destroyed after the lock is released
  const std::lock_guard lock(table->mutex);
  last.swap(table->devices);
}

}  // namespace descend::capi
