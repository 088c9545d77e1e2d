#include "runtime/shared_memory.h"

#include <sys/mman.h>

#include <map>
#include <mutex>
#include <utility>

#include "runtime/devices.h"
#include "runtime/immortal.h"
#include "runtime/memory_codes.h"
#include "runtime/memory_registry.h"
#include "runtime/move_to_file.h"
#include "runtime/shared_file.h"
#include "runtime/stream.h"
#include "runtime/virtual_memory.h"

namespace descend {
namespace {

using detail::address_of;
using detail::Block;
using detail::memory_registry;
using detail::pointer_to;

struct Imports {
  std::mutex mutex;  // locked before the registry's
  struct Import {
    void* start;
    size_t mapped_bytes;
  };
  std::map<std::string, Import> by_key;
};
Immortal<Imports> imports;

Status bad_key() { return failure(Code::kInvalidParam, "key was not made by aclrtIpcMemGetExportKey."); }

}  // namespace

Status export_allocation(void* pointer, size_t bytes, bool anyone, std::string* key) {
  if (pointer == nullptr) return failure(Code::kInvalidParam, "devPtr is null, but must be given.");
  detail::MemoryRegistry& registry = memory_registry();
  // Held to the end, so that no thread frees the allocation while it moves. A thread that touches the memory meanwhile
  // waits; it holds none of these locks.
  const std::lock_guard lock(registry.mutex);
  const auto found = registry.blocks.find(address_of(pointer));
  if (found == registry.blocks.end() || found->second.kind != MemoryKind::kAllocated || found->second.device < 0) {
    return failure(Code::kInvalidParam, "devPtr is ", pointer, ", but must be where memory of aclrtMalloc begins.");
  }
  Block& block = found->second;
  if (bytes == 0 || bytes > block.bytes) {
    return failure(Code::kInvalidParam, "size is ", bytes, ", but must be from 1 to the allocation's ", block.bytes,
                   " bytes.");
  }
  const size_t page = detail::page_size();
  if (block.bytes < page) {
    return failure(Code::kInvalidParam, "the allocation has ", block.bytes,
                   " bytes, but must have a page to be shared, which is ", page, ".");
  }
  std::shared_ptr<SharedFile> file = block.memory.file();
  if (!file) {
    DESCEND_RETURN_IF_ERROR(SharedFile::create(block.bytes, &file));
    DESCEND_RETURN_IF_ERROR(move_to_file(pointer, *file));
    block.memory.set_file(file);
  }
  Ticket ticket;
  DESCEND_RETURN_IF_ERROR(file->publish(bytes, number_of(block.device), anyone, &ticket));
  *key = to_key(ticket);
  return {};
}

Status allow_import(const char* key, const int32_t* pids, size_t count) {
  Ticket ticket;
  if (!from_key(key, &ticket)) return bad_key();
  const auto file = SharedFile::find_published(ticket);
  if (!file) return failure(Code::kInvalidParam, "this process shares no memory by this key, or has ended that.");
  return file->allow(pids, count);
}

Status import_allocation(const char* key, int device, void** pointer) {
  Ticket ticket;
  if (!from_key(key, &ticket)) return bad_key();
  const std::lock_guard lock(imports->mutex);
  const auto [place, is_new] = imports->by_key.try_emplace(to_key(ticket));
  if (!is_new) {
    return failure(Code::kInvalidParam, "this process has imported this memory already, to ", place->second.start, ".");
  }
  void* start = nullptr;
  size_t mapped_bytes = 0;
  const Status status = [&]() -> Status {
    std::shared_ptr<SharedFile> file;
    DESCEND_RETURN_IF_ERROR(SharedFile::open(ticket, &file));
    const int there = device_of(file->published_device());
    Block block;
    block.bytes = file->published_bytes();
    block.kind = MemoryKind::kImported;
    block.device = there >= 0 ? there : device;
    mapped_bytes = file->bytes();
    start = reserve_addresses(mapped_bytes, kReservationUnit);
    if (start == nullptr || !file->map_at(start)) {
      if (start != nullptr) munmap(start, mapped_bytes);
      return failure(kNoDeviceMemory, "there is no room for ", mapped_bytes, " bytes.");
    }
    detail::MemoryRegistry& registry = memory_registry();
    try {
      const std::lock_guard registry_lock(registry.mutex);
      registry.blocks.emplace(address_of(start), std::move(block));
      registry.publish();
    } catch (...) {
      munmap(start, mapped_bytes);
      throw;
    }
    return {};
  }();
  if (!status.ok()) {
    imports->by_key.erase(place);
    return status;
  }
  place->second = {start, mapped_bytes};
  *pointer = start;
  return {};
}

Status close_shared(const char* key) {
  Ticket ticket;
  if (!from_key(key, &ticket)) return bad_key();
  decltype(imports->by_key)::node_type import;
  {
    const std::lock_guard lock(imports->mutex);
    import = imports->by_key.extract(to_key(ticket));
  }
  if (import) {
    const auto [start, mapped_bytes] = import.mapped();
    detail::MemoryRegistry& registry = memory_registry();
    {
      const std::lock_guard lock(registry.mutex);
      registry.blocks.erase(address_of(start));
      registry.publish();
    }
    wait_for_all_streams();
    munmap(start, mapped_bytes);
    return {};
  }
  const auto file = SharedFile::find_published(ticket);
  if (!file) return failure(Code::kInvalidParam, "this process neither shares nor has imported memory by this key.");
  file->withdraw();
  return {};
}

void close_all_imports() {
  const std::lock_guard lock(imports->mutex);
  for (const auto& [key, import] : imports->by_key) munmap(import.start, import.mapped_bytes);
  imports->by_key.clear();
}

void lock_imports() { imports->mutex.lock(); }
void unlock_imports() { imports->mutex.unlock(); }

}  // namespace descend
