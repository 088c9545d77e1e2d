#include "runtime/memory.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cstdlib>
#include <new>
#include <utility>

#include "runtime/device_memory.h"
#include "runtime/registered_memory.h"
#include "runtime/shared_memory.h"
#include "runtime/stream.h"
#include "runtime/virtual_memory.h"

namespace descend {
namespace {

using detail::address_of;
using detail::Block;
using detail::Blocks;
using detail::MallocMemory;
using detail::MemoryRegistry;

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kHugeFrom = 2 * kHugePage;
constexpr size_t kAlignment = 64;
constexpr size_t kLargest = size_t{1} << 46;  // half of the address space

MemoryRegistry* const registry = &detail::memory_registry();

// A fork takes all locks of the memory functions, in their usual order.
void unlock_all() {
  unlock_registered_memory();
  SharedFile::unlock_after_fork();
  registry->mutex.unlock();
  unlock_reservations();
  unlock_imports();
}
[[maybe_unused]] const int fork_handlers = pthread_atfork(
    [] {
      lock_imports();
      lock_reservations();
      registry->mutex.lock();
      SharedFile::lock_for_fork();
      lock_registered_memory();
    },
    unlock_all, unlock_all);

// Memory of at least one page is in whole pages, so that it can be shared with other processes (shared_memory.h).
size_t alignment_of(size_t bytes) {
  if (bytes >= kHugeFrom) return kHugePage;
  return bytes >= detail::page_size() ? detail::page_size() : kAlignment;
}

MallocMemory aligned_memory(size_t bytes) {
  const size_t alignment = alignment_of(bytes), whole = detail::round_up(bytes, alignment);
  // glibc raises its threshold for mapping new memory when memory is freed, but not for memory that it aligned to pages
  // itself. An allocation of 1 MB then took 10 us each time instead of 0.1. So such memory is aligned here.
  const bool by_hand = alignment > kAlignment && alignment < kHugePage;
  MallocMemory memory(by_hand ? std::malloc(whole + alignment) : std::aligned_alloc(alignment, whole), bytes,
                      alignment);
#if defined(MADV_HUGEPAGE)
  if (memory.start() != nullptr && alignment == kHugePage) madvise(memory.start(), bytes, MADV_HUGEPAGE);
#endif
  return memory;
}

}  // namespace

Status allocate(size_t bytes, void** pointer, int device) {
  if (pointer == nullptr) return failure(Code::kInvalidParam, "The address to store the allocation's address is null.");
  if (bytes == 0) return failure(Code::kInvalidParam, "The size of an allocation must not be 0 bytes.");
  MallocMemory memory;
  if (bytes <= kLargest) memory = aligned_memory(bytes);
  if (memory.start() == nullptr && bytes <= kLargest) {
    trim_pages();
    memory = aligned_memory(bytes);
  }
  void* const start = memory.start();
  if (start == nullptr) return failure(Code::kBadAlloc, "There is no memory for an allocation of ", bytes, " bytes.");
  Block block{bytes, MemoryKind::kAllocated, device, std::move(memory)};
  bool fits = false;
  try {
    std::lock_guard lock(registry->mutex);
    const auto place = registry->blocks.emplace(address_of(start), std::move(block)).first;
    fits = registry->add(place->second);
    if (fits) {
      registry->publish();
    } else {
      block = std::move(place->second);  // freed without the lock
      registry->blocks.erase(place);
    }
  } catch (const std::bad_alloc&) {
    return Status{Code::kBadAlloc, "There is no memory left."};
  }
  if (!fits) {
    const DeviceMemory left = device_memory(device);
    return failure(Code::kBadAlloc, "Device ", device, " has ", left.total, " bytes of memory, of which ", left.used,
                   " are taken: there is none for an allocation of ", bytes, " bytes.");
  }
  *pointer = start;
  return {};
}

namespace {

Status not_a_start(void* pointer) {
  const Allocation inside = find_allocation(pointer);
  if (!inside) {
    return failure(Code::kInvalidParam, "The address ", pointer,
                   " to free was freed already, or is not from this library.");
  }
  switch (inside.kind) {
    case MemoryKind::kAllocated:
      return failure(Code::kInvalidParam, "The address ", pointer, " to free is not the start of an allocation, but ",
                     static_cast<const char*>(pointer) - inside.begin, " bytes into one.");
    case MemoryKind::kImported:
      return failure(Code::kInvalidParam, "The address ", pointer,
                     " to free is memory of another process; aclrtIpcMemClose gives it back.");
    default:
      return failure(Code::kInvalidParam, "The address ", pointer,
                     " to free lies in addresses that were reserved; aclrtUnmapMem and aclrtReleaseMemAddress give "
                     "them back.");
  }
}

}  // namespace

Status release(void* pointer) {
  if (pointer == nullptr) return failure(Code::kInvalidParam, "The address to free is null.");
  Blocks::node_type block;
  {
    std::lock_guard lock(registry->mutex);
    const auto found = registry->blocks.find(address_of(pointer));
    if (found != registry->blocks.end() && found->second.kind == MemoryKind::kAllocated) {
      block = registry->blocks.extract(found);
      registry->subtract(block.mapped());
      registry->publish();
    }
  }
  if (!block) return not_a_start(pointer);
  try {
    wait_for_all_streams();
  } catch (...) {  // waiting needs memory, and there is none: the block stays, since work may use it
    std::lock_guard lock(registry->mutex);
    (void)registry->add(block.mapped());
    registry->blocks.insert(std::move(block));
    registry->publish();
    throw;
  }
  forget_registered_memory(pointer, block.mapped().bytes);
  return {};  // the block is freed here
}

size_t allocated_bytes() {
  std::lock_guard lock(registry->mutex);
  return registry->bytes;
}

void release_all_allocations() {
  wait_for_all_streams();
  release_all_reservations();
  close_all_imports();
  forget_all_registered_memory();
  Blocks blocks;  // freed without the lock
  std::lock_guard lock(registry->mutex);
  blocks.swap(registry->blocks);
  for (const auto& [start, block] : blocks) {
    if (block.kind == MemoryKind::kAllocated) registry->subtract(block);
  }
  registry->publish();
}

}  // namespace descend
