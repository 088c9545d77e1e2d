// Memory that programs get from the runtime: by aclrtMalloc, aclrtMallocHost and acl.malloc, and by the mappings of
// virtual_memory.h and shared_memory.h. The registry (memory_registry.h) lists it until it is freed, with the device
// that it counts for. All of it is ordinary memory of this machine.
#pragma once

#include <cstddef>

#include "runtime/memory_codes.h"
#include "runtime/memory_registry.h"
#include "runtime/pages.h"
#include "runtime/status.h"

namespace descend {

// Allocates memory aligned to 64 bytes, to pages from one page on, and to 2 MiB from 4 MiB on. Counts as memory of
// `device`. Fails with kInvalidParam for 0 bytes or a null `pointer`. Fails with kBadAlloc if there is no memory, or if
// the device's share is used up. `*pointer` is then unchanged.
Status allocate(size_t bytes, void** pointer, int device = 0);

// Waits for the work in flight on every stream, then frees. kInvalidParam for null and for anything but the start of a
// live allocation. Not to be called from inside a task.
Status release(void* pointer);

size_t allocated_bytes();        // by allocate
void release_all_allocations();  // for aclFinalize: of every kind; waits as release does

}  // namespace descend
