// The registry of the memory that programs have from the runtime. memory.h, virtual_memory.h and shared_memory.h add to
// it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "runtime/addresses.h"
#include "runtime/device_usage.h"
#include "runtime/devices.h"

namespace descend {

class SharedFile;

inline constexpr int kHostSide = -1;  // in place of a device's number

enum class MemoryKind : uint8_t {
  kAllocated,  // by allocate
  kMapped,     // physical memory, mapped to reserved addresses
  kReserved,   // reserved addresses to which nothing is mapped: no memory
  kImported,   // another process's memory, imported by key
};

struct Allocation {
  const char* begin = nullptr;
  size_t bytes = 0;
  MemoryKind kind = MemoryKind::kAllocated;
  int device = kHostSide;

  explicit operator bool() const { return begin != nullptr; }
  // How many bytes may be used from this address on, which lies in it.
  size_t room(const void* address) const {
    if (kind == MemoryKind::kReserved) return 0;
    return bytes - static_cast<size_t>(static_cast<const char*>(address) - begin);
  }
};
// The live allocation that contains this address, or an empty one. Within one reservation, memory that is mapped side
// by side is one allocation, and so are the unmapped addresses between.
Allocation find_allocation(const void* address);

bool has_allocations();  // of any kind; takes no lock

namespace detail {

// An aligned part of memory from malloc. If its pages were moved to a file, they become ordinary memory again before it
// is freed.
class MallocMemory {
 public:
  MallocMemory() = default;
  MallocMemory(void* given, size_t bytes, size_t alignment)
      : given_(given), start_(pointer_to(round_up(address_of(given), alignment))), bytes_(bytes) {}
  MallocMemory(MallocMemory&& other) noexcept { *this = std::move(other); }
  MallocMemory& operator=(MallocMemory&& other) noexcept;
  ~MallocMemory();

  void* start() const { return start_; }
  const std::shared_ptr<SharedFile>& file() const { return file_; }
  void set_file(std::shared_ptr<SharedFile> file) { file_ = std::move(file); }

 private:
  void *given_ = nullptr, *start_ = nullptr;
  size_t bytes_ = 0;
  std::shared_ptr<SharedFile> file_;
};

struct Block {
  size_t bytes = 0;
  MemoryKind kind = MemoryKind::kAllocated;
  int device = kHostSide;
  MallocMemory memory;  // only if kAllocated
};
using Blocks = std::map<uintptr_t, Block>;

struct MemoryRegistry {
  std::mutex mutex;
  Blocks blocks;  // they never overlap
  size_t bytes = 0;
  std::array<DeviceUsage, kMaxDevices> usage;
  std::atomic<size_t> count{0};  // a lookup in an empty registry needs no lock

  // The lock is held for all of these. Allocated memory counts for its device here; mapped memory has a MemoryClaim.
  [[nodiscard]] bool add(const Block& block) {
    if (block.device >= 0 && !usage[static_cast<size_t>(block.device)].take(block.bytes)) return false;
    bytes += block.bytes;
    return true;
  }
  void subtract(const Block& block) {
    if (block.device >= 0) usage[static_cast<size_t>(block.device)].give_back(block.bytes);
    bytes -= block.bytes;
  }
  // Called after blocks were added or removed.
  void publish() { count.store(blocks.size(), std::memory_order_release); }
};
MemoryRegistry& memory_registry();

}  // namespace detail
}  // namespace descend
