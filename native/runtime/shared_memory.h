// Allocations that processes share by a key (aclrtIpcMem...).
//
// What malloc gave is nobody else's. When an allocation is exported, its pages are moved into a file (move_to_file.h):
// the owner keeps its address and what stands there, and the processes that import it map the same file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/status.h"

namespace descend {

// The first `bytes` of the allocation that begins at `pointer`. With `anyone`, the list of processes is not asked.
Status export_allocation(void* pointer, size_t bytes, bool anyone, std::string* key);

// Adds processes to the list of those that may import what this process exported.
Status allow_import(const char* key, const int32_t* pids, size_t count);

// Maps what another process exported. It is memory of the device that it is there, or of `device` where this process
// does not see that one.
Status import_allocation(const char* key, int device, void** pointer);

// Ends an import of this process, or else an export, which then nobody can import any more; those who have, keep it.
// Waits for the work in flight before it unmaps.
Status close_shared(const char* key);

void close_all_imports();

void lock_imports();
void unlock_imports();

}  // namespace descend
