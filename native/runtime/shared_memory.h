// Allocations that processes share by a key (aclrtIpcMem...).
//
// Memory from malloc belongs to one process alone. So exporting an allocation moves its pages into a file
// (move_to_file.h). The owner keeps the address and the contents, and the processes that import it map the same file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/status.h"

namespace descend {

// Exports the first `bytes` of the allocation that begins at `pointer`. With `anyone` every process may import it,
// whether or not it is on the list of processes.
Status export_allocation(void* pointer, size_t bytes, bool anyone, std::string* key);

// Adds processes to the list of those that may import what this process exported.
Status allow_import(const char* key, const int32_t* pids, size_t count);

// Maps what another process exported. It counts as memory of the device that it belongs to in that process, or of
// `device` if this process does not see that device.
Status import_allocation(const char* key, int device, void** pointer);

// Ends an import of this process, after the work in flight. If there is none of this key, ends an export: no process
// can import it from then on, and those that have imported it keep it.
Status close_shared(const char* key);

void close_all_imports();

void lock_imports();
void unlock_imports();

}  // namespace descend
