// Addresses and pages as numbers.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace descend::detail {

inline uintptr_t address_of(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }
inline void* pointer_to(uintptr_t address) { return reinterpret_cast<void*>(address); }

inline size_t page_size() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}
inline size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace descend::detail
