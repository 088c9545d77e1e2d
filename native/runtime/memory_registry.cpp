#include "runtime/memory_registry.h"

#include <cstdlib>

#include "runtime/immortal.h"
#include "runtime/move_to_file.h"

namespace descend {
namespace {

Immortal<detail::MemoryRegistry> registry;

}  // namespace

namespace detail {

MemoryRegistry& memory_registry() { return *registry; }

MallocMemory& MallocMemory::operator=(MallocMemory&& other) noexcept {
  std::swap(given_, other.given_);
  std::swap(start_, other.start_);
  std::swap(bytes_, other.bytes_);
  std::swap(file_, other.file_);
  return *this;
}

MallocMemory::~MallocMemory() {
  // If the system does not give ordinary pages back, malloc must not use this memory again.
  if (file_ && !take_back_from_file(start_, round_up(bytes_, page_size()))) return;
  std::free(given_);
}

}  // namespace detail

Allocation find_allocation(const void* address) {
  if (!has_allocations()) return {};
  const uintptr_t wanted = detail::address_of(address);
  std::lock_guard lock(registry->mutex);
  auto next = registry->blocks.upper_bound(wanted);
  if (next == registry->blocks.begin()) return {};
  const auto& [start, block] = *--next;
  if (wanted - start >= block.bytes) return {};
  return {static_cast<const char*>(detail::pointer_to(start)), block.bytes, block.kind, block.device};
}

bool has_allocations() { return registry->count.load(std::memory_order_acquire) != 0; }

}  // namespace descend
