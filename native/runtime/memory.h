// Device memory: what aclrtMalloc and acl.malloc hand out, known to a registry until it is freed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/pages.h"
#include "runtime/status.h"

namespace descend {

// Aligned to 64 bytes, large ones to 2 MB. Fails with kInvalidParam for 0 bytes or a null `pointer`, with kBadAlloc
// when there is no memory; `*pointer` is then left alone.
Status allocate(size_t bytes, void** pointer);

// Waits for the work in flight on every stream, then frees. kInvalidParam for null and for anything but the start of a
// live allocation. Not to be called from inside a task.
Status release(void* pointer);

struct Allocation {
  const char* begin = nullptr;
  size_t bytes = 0;
  explicit operator bool() const { return begin != nullptr; }
};
// The live allocation that contains this address, or an empty one.
Allocation find_allocation(const void* address);

size_t allocated_bytes();
bool has_allocations();          // quick to tell
void release_all_allocations();  // aclFinalize; waits as release does

}  // namespace descend
