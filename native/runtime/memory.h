// Memory that programs ask the runtime for, known to a registry until it is freed: what aclrtMalloc, aclrtMallocHost
// and acl.malloc hand out, and what virtual_memory.h and shared_memory.h map. All of it is this machine's ordinary
// memory; the registry knows which device each piece counts as.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/pages.h"
#include "runtime/status.h"

namespace descend {

// Codes that functions of memory alone return, beside those of Code.
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
  kImported,   // another process's, by the key that it was exported by
};

// Aligned to 64 bytes, to pages from the size of one on, to 2 MB where large. Counts as memory of `device`. Fails with
// kInvalidParam for 0 bytes or a null `pointer`, with kBadAlloc when there is no memory or the device would hold more
// than it has; `*pointer` is then left alone.
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
  // How many bytes may be touched from an address within it on.
  size_t room(const void* address) const {
    if (kind == MemoryKind::kReserved) return 0;
    return bytes - static_cast<size_t>(static_cast<const char*>(address) - begin);
  }
};
// The live allocation that contains this address, or an empty one. What is mapped side by side to addresses that were
// reserved as one is one allocation, and so is what lies between.
Allocation find_allocation(const void* address);

size_t allocated_bytes();        // by allocate
bool has_allocations();          // quick to tell, of any kind
void release_all_allocations();  // aclFinalize: of every kind; waits as release does

}  // namespace descend
