#include "runtime/registered_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>

#include "runtime/immortal.h"
#include "runtime/memory_codes.h"
#include "runtime/memory_registry.h"

namespace descend {
namespace {

using detail::address_of;

struct Range {
  size_t bytes;
  bool is_mapped;
};
struct Registered {
  std::mutex mutex;
  std::map<uintptr_t, Range> ranges;  // they never overlap
  std::atomic<size_t> count{0};
};
Immortal<Registered> registered;

// Whether every page is mapped.
bool is_backed(uintptr_t begin, size_t bytes) {
  const size_t page = detail::page_size();
#if defined(__linux__)
  std::array<unsigned char, 4096> pages;
#else
  std::array<char, 4096> pages;
#endif
  const uintptr_t end = begin + bytes;
  for (begin = begin / page * page; begin < end; begin += pages.size() * page) {
    const size_t length = std::min(detail::round_up(end - begin, page), pages.size() * page);
    if (mincore(detail::pointer_to(begin), length, pages.data()) != 0) return false;
  }
  return true;
}

std::map<uintptr_t, Range>::iterator at_or_before(uintptr_t address) {
  auto next = registered->ranges.upper_bound(address);
  return next == registered->ranges.begin() ? registered->ranges.end() : std::prev(next);
}

}  // namespace

Status register_memory(void* begin, size_t bytes, bool is_mapped) {
  const uintptr_t from = address_of(begin);
  if (begin == nullptr) return failure(Code::kInvalidParam, "ptr is null, but must be given.");
  if (bytes == 0) return failure(Code::kInvalidParam, "size is 0, but must be at least 1 byte.");
  if (bytes > UINTPTR_MAX - from || !is_backed(from, bytes)) {
    return failure(Code::kInvalidParam, "the ", bytes, " bytes from ", begin, " on are not all memory.");
  }
  if (const Allocation around = find_allocation(begin)) {
    if (around.device != kHostSide) {
      return failure(Code::kInvalidParam, "ptr is memory of device ", around.device, ", but must be the host's.");
    }
    if (around.room(begin) < bytes) {
      return failure(Code::kInvalidParam, "size is ", bytes, " bytes, but the allocation has ", around.room(begin),
                     " from ptr on.");
    }
  }
  const std::lock_guard lock(registered->mutex);
  const auto before = at_or_before(from + bytes - 1);
  if (before != registered->ranges.end() && before->first + before->second.bytes > from) {
    return failure(kRegisteredAlready, "the ", before->second.bytes, " bytes from ", detail::pointer_to(before->first),
                   " on are registered already.");
  }
  registered->ranges.emplace(from, Range{bytes, is_mapped});
  registered->count = registered->ranges.size();
  return {};
}

Status unregister_memory(const void* begin) {
  if (begin == nullptr) return failure(Code::kInvalidParam, "ptr is null, but must be given.");
  const std::lock_guard lock(registered->mutex);
  if (registered->ranges.erase(address_of(begin)) == 0) {
    return failure(kNotRegistered, "no memory that begins at ", begin, " is registered.");
  }
  registered->count = registered->ranges.size();
  return {};
}

RegisteredMemory find_registered_memory(const void* address) {
  if (registered->count == 0) return {};
  const std::lock_guard lock(registered->mutex);
  const auto before = at_or_before(address_of(address));
  if (before == registered->ranges.end() || address_of(address) - before->first >= before->second.bytes) return {};
  return {static_cast<const char*>(detail::pointer_to(before->first)), before->second.bytes, before->second.is_mapped};
}

void forget_registered_memory(const void* begin, size_t bytes) {
  if (registered->count == 0) return;
  const std::lock_guard lock(registered->mutex);
  auto& ranges = registered->ranges;
  ranges.erase(ranges.lower_bound(address_of(begin)), ranges.lower_bound(address_of(begin) + bytes));
  registered->count = ranges.size();
}

void forget_all_registered_memory() {
  const std::lock_guard lock(registered->mutex);
  registered->ranges.clear();
  registered->count = 0;
}

void lock_registered_memory() { registered->mutex.lock(); }
void unlock_registered_memory() { registered->mutex.unlock(); }

}  // namespace descend
