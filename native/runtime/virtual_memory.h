// Addresses without memory, memory without an address, and the one mapped to the other: what programs build allocations
// from that grow (torch_npu's expandable segments).
//
// Reserved addresses are a range of the process that nothing can be read from or written to. A piece of physical memory
// is a file in memory (shared_file.h), which another process can be given, too; it has pages once they are touched.
// Mapping puts the file into the range, unmapping leaves the addresses reserved and what stands in the file as it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/device_memory.h"
#include "runtime/shared_file.h"
#include "runtime/status.h"

namespace descend {

inline constexpr size_t kReservationUnit = size_t{2} << 20;
inline constexpr size_t kHugeReservationUnit = size_t{1} << 30;  // of what has at least so many bytes

// It lives as long as a handle or a mapping needs it.
struct PhysicalMemory {
  std::shared_ptr<SharedFile> file;
  MemoryClaim claim;  // what was imported is its owner's
  size_t bytes = 0;
  size_t granularity = 0;  // what is mapped must be whole such pieces
  int device = 0;          // or kHostSide
  bool is_imported = false;
};

Status create_physical(size_t bytes, size_t granularity, int device, std::shared_ptr<PhysicalMemory>* memory);
Status export_physical(const PhysicalMemory& memory, bool anyone, uint64_t* handle);
Status allow_physical(uint64_t handle, const int32_t* pids, size_t count);
Status import_physical(uint64_t handle, int device, std::shared_ptr<PhysicalMemory>* memory);

// `expected` is null, or the address wanted, which is then given or refused.
Status reserve(size_t bytes, void* expected, void** address);
Status release_reservation(void* address);

// One reservation takes memory of one device alone, and either this process's or imported.
Status map_physical(void* address, size_t bytes, const std::shared_ptr<PhysicalMemory>& memory);
// Waits for the work in flight. Not to be called from inside a task.
Status unmap_physical(void* address);

void release_all_reservations();

// Addresses that nothing uses, for whoever maps something there; null where there are none.
void* reserve_addresses(size_t bytes, size_t alignment);

void lock_reservations();
void unlock_reservations();

}  // namespace descend
