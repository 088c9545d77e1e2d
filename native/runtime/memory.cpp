#include "runtime/memory.h"

#include <pthread.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <new>

#include "runtime/immortal.h"
#include "runtime/stream.h"

namespace descend {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kHugeFrom = 2 * kHugePage;
constexpr size_t kAlignment = 64;
constexpr size_t kLargest = size_t{1} << 46;  // half of what an address can say

struct Free {
  void operator()(void* pointer) const { std::free(pointer); }
};
using Memory = std::unique_ptr<void, Free>;

struct Block {
  Memory memory;
  size_t bytes;
};
using Blocks = std::map<uintptr_t, Block>;

struct Registry {
  std::mutex mutex;
  Blocks blocks;
  size_t bytes = 0;
  std::atomic<size_t> count{0};  // lets a lookup in an empty registry do without the lock
};

Immortal<Registry> registry;

[[maybe_unused]] const int fork_handlers =
    pthread_atfork([] { registry->mutex.lock(); }, [] { registry->mutex.unlock(); }, [] { registry->mutex.unlock(); });

Memory aligned_memory(size_t bytes) {
  const size_t alignment = bytes >= kHugeFrom ? kHugePage : kAlignment;
  Memory memory(std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment));
#if defined(MADV_HUGEPAGE)
  if (memory && alignment == kHugePage) madvise(memory.get(), bytes, MADV_HUGEPAGE);
#endif
  return memory;
}

}  // namespace

Status allocate(size_t bytes, void** pointer) {
  if (pointer == nullptr) return failure(Code::kInvalidParam, "The address to store the allocation's address is null.");
  if (bytes == 0) return failure(Code::kInvalidParam, "The size of an allocation must not be 0 bytes.");
  Memory memory;
  if (bytes <= kLargest) memory = aligned_memory(bytes);
  if (!memory && bytes <= kLargest) {
    trim_pages();
    memory = aligned_memory(bytes);
  }
  if (!memory) return failure(Code::kBadAlloc, "There is no memory for an allocation of ", bytes, " bytes.");
  void* const start = memory.get();
  try {
    std::lock_guard lock(registry->mutex);
    registry->blocks.emplace(reinterpret_cast<uintptr_t>(start), Block{std::move(memory), bytes});
    registry->bytes += bytes;
    registry->count.store(registry->blocks.size(), std::memory_order_release);
  } catch (const std::bad_alloc&) {
    return Status{Code::kBadAlloc, "There is no memory left."};
  }
  *pointer = start;
  return {};
}

Status release(void* pointer) {
  if (pointer == nullptr) return failure(Code::kInvalidParam, "The address to free is null.");
  Blocks::node_type block;
  {
    std::lock_guard lock(registry->mutex);
    block = registry->blocks.extract(reinterpret_cast<uintptr_t>(pointer));
    if (block) {
      registry->bytes -= block.mapped().bytes;
      registry->count.store(registry->blocks.size(), std::memory_order_release);
    }
  }
  if (!block) {
    const Allocation inside = find_allocation(pointer);
    if (!inside) return failure(Code::kInvalidParam, "The address ", pointer, " to free is not a live allocation.");
    return failure(Code::kInvalidParam, "The address ", pointer, " to free is not the start of an allocation, but ",
                   static_cast<const char*>(pointer) - inside.begin, " bytes into one.");
  }
  try {
    wait_for_all_streams();
  } catch (...) {  // there was no memory to wait with: the block stays, for work may use it
    std::lock_guard lock(registry->mutex);
    registry->bytes += block.mapped().bytes;
    registry->blocks.insert(std::move(block));
    registry->count.store(registry->blocks.size(), std::memory_order_release);
    throw;
  }
  return {};  // the block is freed here
}

Allocation find_allocation(const void* address) {
  if (!has_allocations()) return {};
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  std::lock_guard lock(registry->mutex);
  auto next = registry->blocks.upper_bound(wanted);
  if (next == registry->blocks.begin()) return {};
  const auto& [start, block] = *--next;
  if (wanted - start >= block.bytes) return {};
  return {static_cast<const char*>(block.memory.get()), block.bytes};
}

bool has_allocations() { return registry->count.load(std::memory_order_acquire) != 0; }

size_t allocated_bytes() {
  std::lock_guard lock(registry->mutex);
  return registry->bytes;
}

void release_all_allocations() {
  Blocks blocks;
  {
    std::lock_guard lock(registry->mutex);
    blocks.swap(registry->blocks);
    registry->bytes = 0;
    registry->count.store(0, std::memory_order_release);
  }
  try {
    wait_for_all_streams();
  } catch (...) {  // as above
    std::lock_guard lock(registry->mutex);
    for (const auto& [start, block] : blocks) registry->bytes += block.bytes;
    registry->blocks.merge(blocks);
    registry->count.store(registry->blocks.size(), std::memory_order_release);
    throw;
  }
}

}  // namespace descend
