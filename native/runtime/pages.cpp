#include "runtime/pages.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <iterator>
#include <list>
#include <map>
#include <mutex>
#include <new>

#include "runtime/immortal.h"
#include "runtime/machine.h"

namespace descend {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kHugeFrom = 2 * kHugePage;   // for smaller blocks, alignment to huge pages would waste too much
constexpr size_t kLargest = size_t{1} << 46;  // half of the address space
constexpr size_t kUnknown = SIZE_MAX;
const size_t page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));

struct Block {
  void* pointer;
  size_t bytes;
};
using Blocks = std::list<Block>;

struct Cache {
  std::mutex mutex;
  Blocks blocks;                                    // the latest one given back comes first
  std::multimap<size_t, Blocks::iterator> by_size;  // among equal sizes, the latest one given back comes last
  size_t bytes = 0;
  size_t limit = kUnknown;
};

Immortal<Cache> cache;

[[maybe_unused]] const int fork_handlers =
    pthread_atfork([] { cache->mutex.lock(); }, [] { cache->mutex.unlock(); }, [] { cache->mutex.unlock(); });

void* map(size_t bytes) {
  const size_t slack = bytes >= kHugeFrom ? kHugePage : 0;
  void* const mapped = mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  if (slack == 0) return mapped;
  char* const begin = static_cast<char*>(mapped);
  const size_t before = -reinterpret_cast<uintptr_t>(begin) % kHugePage;
  if (before != 0) munmap(begin, before);
  if (before != slack) munmap(begin + before + bytes, slack - before);
  prefer_huge_pages(begin + before, bytes);
  return begin + before;
}

void unmap(Blocks& blocks) {
  for (const Block& block : blocks) munmap(block.pointer, block.bytes);
}

void forget(Blocks::iterator block) {
  auto [first, last] = cache->by_size.equal_range(block->bytes);
  cache->by_size.erase(std::find_if(first, last, [&](const auto& entry) { return entry.second == block; }));
  cache->bytes -= block->bytes;
}

// Removes the blocks that were given back first until the cache is within `limit`. The caller unmaps them without the
// lock.
void evict(size_t limit, Blocks& evicted) {
  while (cache->bytes > limit) {
    const auto oldest = std::prev(cache->blocks.end());
    forget(oldest);
    evicted.splice(evicted.end(), cache->blocks, oldest);
  }
}

}  // namespace

namespace detail {

size_t page_class(size_t bytes) {
  if (bytes > kLargest) return 0;
  bytes = std::max(bytes, page_bytes);
  const size_t step = std::max(std::bit_floor(bytes) / 8, page_bytes);
  return (bytes + step - 1) / step * step;
}

}  // namespace detail

void prefer_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] size_t bytes) {
#if defined(MADV_HUGEPAGE)
  if (bytes < kHugeFrom) return;
  const size_t before = -reinterpret_cast<uintptr_t>(memory) % page_bytes;  // whole pages: the others have neighbours
  madvise(static_cast<char*>(memory) + before, (bytes - before) / page_bytes * page_bytes, MADV_HUGEPAGE);
#endif
}

void* take_pages(size_t bytes) {
  const size_t size = detail::page_class(bytes);
  if (size == 0) return nullptr;
  {
    std::lock_guard lock(cache->mutex);
    if (auto entry = cache->by_size.upper_bound(size); entry != cache->by_size.begin() && (--entry)->first == size) {
      const Blocks::iterator block = entry->second;
      void* const pointer = block->pointer;
      cache->by_size.erase(entry);
      cache->bytes -= size;
      cache->blocks.erase(block);
      return pointer;
    }
  }
  if (void* const pointer = map(size)) return pointer;
  trim_pages();
  return map(size);
}

void give_pages(void* pointer, size_t bytes) {
  if (pointer == nullptr) return;
  const size_t size = detail::page_class(bytes);
  Blocks evicted;  // unmapped after the lock is released
  try {
    evicted.push_back({pointer, size});
    std::lock_guard lock(cache->mutex);
    if (cache->limit == kUnknown) cache->limit = std::min(usable_memory() / 8, size_t{1} << 30);
    if (size <= cache->limit) {
      cache->by_size.emplace(size, evicted.begin());
      cache->blocks.splice(cache->blocks.begin(), evicted);
      cache->bytes += size;
      evict(cache->limit, evicted);
    }
  } catch (const std::bad_alloc&) {
    if (evicted.empty()) munmap(pointer, size);
  }
  unmap(evicted);
}

void trim_pages() {
  Blocks evicted;
  {
    std::lock_guard lock(cache->mutex);
    evict(0, evicted);
  }
  unmap(evicted);
}

size_t cached_page_bytes() {
  std::lock_guard lock(cache->mutex);
  return cache->bytes;
}

void set_page_cache_limit(size_t bytes) {
  Blocks evicted;
  {
    std::lock_guard lock(cache->mutex);
    cache->limit = std::min(bytes, kUnknown - 1);
    evict(cache->limit, evicted);
  }
  unmap(evicted);
}

}  // namespace descend
