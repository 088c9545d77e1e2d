// The registry behind memory.h, for the files of the runtime that add to it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "runtime/device_memory.h"
#include "runtime/devices.h"
#include "runtime/memory.h"

namespace descend {

class SharedFile;

namespace detail {

inline uintptr_t address_of(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }
inline void* pointer_to(uintptr_t address) { return reinterpret_cast<void*>(address); }

size_t page_size();
inline size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

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
