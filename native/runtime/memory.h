// Memory that programs get from the runtime: from aclrtMalloc, aclrtMallocHost and acl.malloc, and what
// virtual_memory.h and shared_memory.h map. A registry knows it until it is freed, and which device it counts for. All
// of it is ordinary memory of this machine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/pages.h"
#include "runtime/status.h"

namespace descend {

// Codes that only the memory functions return, beside those of Code.
inline constexpr Code kNotSupported{200006};
inline constexpr Code kNoDeviceMemory{207001};
inline constexpr Code kNoPermission{207006};
inline constexpr Code kRegisteredAlready{507910};
inline constexpr Code kNotRegistered{507911};

inline constexpr int kHostSide = -1;  // in place of a device's number

enum class MemoryKind : uint8_t {
  kAllocated,  // by allocate
  kMapped,     // physical memory, mapped to reserved addresses
  kReserved,   // reserved addresses to which nothing is mapped: no memory
  kImported,   // another process's memory, imported by key
};

// Aligned to 64 bytes, from one page on to pages, and to 2 MiB if large. Counts as memory of `device`. Fails with
// kInvalidParam for 0 bytes or a null `pointer`. Fails with kBadAlloc if there is no memory, or if the device's share
// is used up. `*pointer` is then unchanged.
Status allocate(size_t bytes, void** pointer, int device = 0);

// Waits for the work in flight on every stream, then frees. kInvalidParam for null and for anything but the start of a
// live allocation. Not to be called from inside a task.
Status release(void* pointer);

struct Allocation {
  const char* begin = nullptr;
  size_t bytes = 0;
  MemoryKind kind = MemoryKind::kAllocated;
  int device = kHostSide;

  explicit operator bool() const { return begin != nullptr; }
  // How many bytes may be used from an address in it on.
  size_t room(const void* address) const {
    if (kind == MemoryKind::kReserved) return 0;
    return bytes - static_cast<size_t>(static_cast<const char*>(address) - begin);
  }
};
// The live allocation that contains this address, or an empty one. Within one reservation, memory that is mapped side
// by side is one allocation, and so are the unmapped addresses between.
Allocation find_allocation(const void* address);

size_t allocated_bytes();        // by allocate
bool has_allocations();          // quick to tell, of any kind
void release_all_allocations();  // aclFinalize: of every kind; waits as release does

}  // namespace descend
