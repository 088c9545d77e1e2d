// Host memory that programs registered. The runtime then knows where it begins and ends. A device here can reach all
// host memory anyway, at the same address.
#pragma once

#include <cstddef>

#include "runtime/status.h"

namespace descend {

// Refuses null, 0 bytes, addresses that are not mapped or belong to a device, and memory that is already registered.
Status register_memory(void* begin, size_t bytes, bool is_mapped);
Status unregister_memory(const void* begin);

struct RegisteredMemory {
  const char* begin = nullptr;
  size_t bytes = 0;
  bool is_mapped = false;  // registered for use by devices
  explicit operator bool() const { return begin != nullptr; }
};
RegisteredMemory find_registered_memory(const void* address);

void forget_registered_memory(const void* begin, size_t bytes);  // before it is freed
void forget_all_registered_memory();

void lock_registered_memory();
void unlock_registered_memory();

}  // namespace descend
