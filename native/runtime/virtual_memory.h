// Reserved addresses, physical memory, and mappings between them. From these, programs build allocations that can grow,
// such as torch_npu's expandable segments.
//
// Reserved addresses are an address range of the process that cannot be read or written. Physical memory is a file in
// memory (shared_file.h), which other processes can map, too; the system gives it a page when the page is first
// touched. Mapping puts the file into the range. Unmapping leaves the addresses reserved, and the contents of the file
// unchanged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/device_memory.h"
#include "runtime/shared_file.h"
#include "runtime/status.h"

namespace descend {

inline constexpr size_t kReservationUnit = size_t{2} << 20;
inline constexpr size_t kHugeReservationUnit = size_t{1} << 30;  // for reservations of at least this size

// Owned jointly by its handle and its mappings.
struct PhysicalMemory {
  std::shared_ptr<SharedFile> file;
  MemoryClaim claim;  // none for imported memory, which counts for the process that made it
  size_t bytes = 0;
  size_t granularity = 0;  // the size of a mapping is a multiple of it
  int device = 0;          // or kHostSide
  bool is_imported = false;
};

Status create_physical(size_t bytes, size_t granularity, int device, std::shared_ptr<PhysicalMemory>* memory);
Status export_physical(const PhysicalMemory& memory, bool anyone, uint64_t* handle);
Status allow_physical(uint64_t handle, const int32_t* pids, size_t count);
Status import_physical(uint64_t handle, int device, std::shared_ptr<PhysicalMemory>* memory);

// `expected` is null, or the address wanted: the call then fails if it cannot give that one.
Status reserve(size_t bytes, void* expected, void** address);
Status release_reservation(void* address);

// All memory mapped to one reservation must be of one device, and be either this process's or imported.
Status map_physical(void* address, size_t bytes, const std::shared_ptr<PhysicalMemory>& memory);
// Waits for the work in flight. Not to be called from inside a task.
Status unmap_physical(void* address);

void release_all_reservations();

// An unused address range, for the caller to map memory to; null if there is none.
void* reserve_addresses(size_t bytes, size_t alignment);

void lock_reservations();
void unlock_reservations();

}  // namespace descend
