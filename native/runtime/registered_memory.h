// Host memory that programs registered: the runtime then knows where it begins and ends. A device of this machine can
// reach all of it anyway, at the same address.
#pragma once

#include <cstddef>

#include "runtime/status.h"

namespace descend {

// Refused: null, 0 bytes, addresses that are not mapped or belong to a device, and what is registered already.
Status register_memory(void* begin, size_t bytes, bool is_mapped);
Status unregister_memory(const void* begin);

struct RegisteredMemory {
  const char* begin = nullptr;
  size_t bytes = 0;
  bool is_mapped = false;  // devices were to reach it
  explicit operator bool() const { return begin != nullptr; }
};
RegisteredMemory find_registered_memory(const void* address);

void forget_registered_memory(const void* begin, size_t bytes);  // it is being freed
void forget_all_registered_memory();

void lock_registered_memory();
void unlock_registered_memory();

}  // namespace descend
