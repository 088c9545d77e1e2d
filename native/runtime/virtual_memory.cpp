#include "runtime/virtual_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "runtime/devices.h"
#include "runtime/immortal.h"
#include "runtime/memory_codes.h"
#include "runtime/memory_registry.h"
#include "runtime/stream.h"

namespace descend {
namespace {

using detail::address_of;
using detail::Block;
using detail::Blocks;
using detail::memory_registry;
using detail::pointer_to;

#if !defined(MAP_FIXED_NOREPLACE)
constexpr int MAP_FIXED_NOREPLACE =
    0;  // on such systems the address is only a hint, and a range elsewhere is unmapped again
#endif
constexpr int kNothing = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

struct Mapping {
  std::shared_ptr<PhysicalMemory> memory;
  size_t bytes = 0;
  bool is_leaving = false;  // a thread waits for the work that uses it, and will unmap it
};
struct Reservation {
  size_t bytes = 0;
  std::map<uintptr_t, Mapping> mappings;
};
struct Reservations {
  std::mutex mutex;  // locked before the registry's
  std::map<uintptr_t, Reservation> all;
};
Immortal<Reservations> reservations;

// In the registry a reservation is a sequence of blocks: mapped memory, and addresses without memory. This turns a part
// of one block into the other kind, and joins it with its neighbours of that kind. Both locks are held.
void turn(uintptr_t begin, size_t bytes, MemoryKind kind, int device, const Reservation& reservation,
          uintptr_t reserved_from) {
  Blocks& blocks = memory_registry().blocks;
  const auto run = [](size_t size, MemoryKind run_kind, int run_device) {
    Block block;
    block.bytes = size;
    block.kind = run_kind;
    block.device = run_device;
    return block;
  };
  const auto old = std::prev(blocks.upper_bound(begin));
  const uintptr_t old_begin = old->first, end = begin + bytes, old_end = old_begin + old->second.bytes;
  // All memory is allocated first: what follows cannot fail.
  Blocks made;
  if (begin > old_begin) made.emplace(begin, Block());
  if (end < old_end) made.emplace(end, run(old_end - end, old->second.kind, old->second.device));
  if (begin > old_begin) old->second.bytes = begin - old_begin;
  blocks.merge(made);
  auto turned = blocks.find(begin);
  turned->second = run(bytes, kind, device);
  const auto next = std::next(turned);
  if (end < reserved_from + reservation.bytes && next->second.kind == kind) {
    turned->second.bytes += next->second.bytes;
    blocks.erase(next);
  }
  if (begin > reserved_from && std::prev(turned)->second.kind == kind) {
    std::prev(turned)->second.bytes += turned->second.bytes;
    blocks.erase(turned);
  }
  memory_registry().publish();
}

bool leave_empty(void* address, size_t bytes) {
  return mmap(address, bytes, PROT_NONE, kNothing | MAP_FIXED, -1, 0) != MAP_FAILED;
}

// The reservation that an address lies in.
std::map<uintptr_t, Reservation>::iterator around(uintptr_t address) {
  auto next = reservations->all.upper_bound(address);
  if (next == reservations->all.begin()) return reservations->all.end();
  --next;
  return address - next->first < next->second.bytes ? next : reservations->all.end();
}

Status no_room(size_t bytes) {
  return failure(kNoDeviceMemory, "there are no ", bytes, " bytes of addresses left: ", std::strerror(errno), ".");
}

std::string owner(int device) { return device == kHostSide ? "the host" : concat("device ", device); }

// Whether memory may be mapped beside what is already mapped in the reservation.
Status check_company(const Reservation& reservation, const PhysicalMemory& memory) {
  if (reservation.mappings.empty()) return {};
  const PhysicalMemory& other = *reservation.mappings.begin()->second.memory;
  if (other.device != memory.device) {
    return failure(Code::kInvalidParam, "the addresses were reserved as one and hold memory of ", owner(other.device),
                   ", so memory of ", owner(memory.device), " cannot be mapped there, too.");
  }
  if (other.is_imported != memory.is_imported) {
    return failure(Code::kInvalidParam,
                   "the addresses were reserved as one: memory of this process and memory that was imported cannot "
                   "both be mapped there.");
  }
  return {};
}

Status check_free(const Reservation& reservation, uintptr_t begin, size_t bytes) {
  auto next = reservation.mappings.upper_bound(begin + bytes - 1);
  if (next == reservation.mappings.begin()) return {};
  --next;
  if (next->first + next->second.bytes <= begin) return {};
  return failure(Code::kInvalidParam, "memory of ", next->second.bytes, " bytes is mapped to ", pointer_to(next->first),
                 " already.");
}

}  // namespace

void* reserve_addresses(size_t bytes, size_t alignment) {
  size_t with_slack = 0;
  if (__builtin_add_overflow(bytes, alignment, &with_slack)) return nullptr;
  void* const start = mmap(nullptr, with_slack, PROT_NONE, kNothing, -1, 0);
  if (start == MAP_FAILED) return nullptr;
  const uintptr_t from = address_of(start), begin = detail::round_up(from, alignment);
  if (begin > from) munmap(start, begin - from);
  munmap(pointer_to(begin + bytes), from + with_slack - begin - bytes);
  return pointer_to(begin);
}

Status create_physical(size_t bytes, size_t granularity, int device, std::shared_ptr<PhysicalMemory>* memory) {
  auto made = std::make_shared<PhysicalMemory>();
  if (!made->claim.take(device, bytes)) {
    const DeviceMemory left = device_memory(device);
    return failure(kNoDeviceMemory, "device ", device, " has ", left.total, " bytes of memory, of which ", left.used,
                   " are taken; ", bytes, " more do not fit in.");
  }
  DESCEND_RETURN_IF_ERROR(SharedFile::create(bytes, &made->file));
  made->bytes = bytes;
  made->granularity = granularity;
  made->device = device;
  *memory = std::move(made);
  return {};
}

Status export_physical(const PhysicalMemory& memory, bool anyone, uint64_t* handle) {
  if (memory.is_imported) {
    return failure(Code::kInvalidParam, "handle is memory that was imported; only its owner can export it.");
  }
  if (memory.file->published()) return failure(Code::kInvalidParam, "handle has been exported already.");
  Ticket ticket;
  DESCEND_RETURN_IF_ERROR(memory.file->publish(
      memory.bytes, memory.device == kHostSide ? kHostSide : number_of(memory.device), anyone, &ticket));
  const Status status = to_handle(ticket, handle);
  if (!status.ok()) memory.file->withdraw();
  return status;
}

Status allow_physical(uint64_t handle, const int32_t* pids, size_t count) {
  Ticket ticket;
  const auto file = from_handle(handle, &ticket) ? SharedFile::find_published(ticket) : nullptr;
  if (!file) {
    return failure(Code::kInvalidParam, "shareableHandle is ", handle,
                   ", which this process has not exported, or whose memory it has freed.");
  }
  return file->allow(pids, count);
}

Status import_physical(uint64_t handle, int device, std::shared_ptr<PhysicalMemory>* memory) {
  Ticket ticket;
  if (!from_handle(handle, &ticket)) {
    return failure(Code::kInvalidParam, "shareableHandle is ", handle, ", which is none.");
  }
  if (SharedFile::find_published(ticket)) {
    return failure(Code::kInvalidParam, "shareableHandle is this process's own; only others can import it.");
  }
  auto made = std::make_shared<PhysicalMemory>();
  DESCEND_RETURN_IF_ERROR(SharedFile::open(ticket, &made->file));
  made->bytes = made->file->published_bytes();
  made->granularity = detail::page_size();  // the exporting process has checked its own granularity
  made->device = made->file->published_device() == kHostSide ? kHostSide : device;
  made->is_imported = true;
  *memory = std::move(made);
  return {};
}

Status reserve(size_t bytes, void* expected, void** address) {
  if (bytes == 0) return failure(Code::kInvalidParam, "size is 0, but must be at least 1 byte.");
  const size_t alignment = bytes >= kHugeReservationUnit ? kHugeReservationUnit : kReservationUnit;
  if (bytes > SIZE_MAX / 2) return no_room(bytes);
  Reservation reservation;
  reservation.bytes = detail::round_up(bytes, kReservationUnit);
  void* start = nullptr;
  if (expected == nullptr) {
    start = reserve_addresses(reservation.bytes, alignment);
    if (start == nullptr) return no_room(bytes);
  } else {
    if (address_of(expected) % alignment != 0) {
      return failure(Code::kInvalidParam, "expectPtr is ", expected, ", but must be aligned to ", alignment, " bytes.");
    }
    start = mmap(expected, reservation.bytes, PROT_NONE, kNothing | MAP_FIXED_NOREPLACE, -1, 0);
    if (start != expected) {  // kernels before 4.17 take the address as a hint, too
      if (start != MAP_FAILED) munmap(start, reservation.bytes);
      return failure(Code::kInvalidParam, "the ", bytes, " bytes from ", expected, " on are in use, or are none.");
    }
  }
  try {
    const std::lock_guard lock(reservations->mutex);
    Block gap;
    gap.bytes = reservation.bytes;
    gap.kind = MemoryKind::kReserved;
    const auto place = reservations->all.emplace(address_of(start), std::move(reservation)).first;
    try {
      const std::lock_guard registry_lock(memory_registry().mutex);
      memory_registry().blocks.emplace(address_of(start), std::move(gap));
      memory_registry().publish();
    } catch (...) {
      reservations->all.erase(place);
      throw;
    }
  } catch (...) {
    munmap(start, detail::round_up(bytes, kReservationUnit));
    throw;
  }
  *address = start;
  return {};
}

Status release_reservation(void* address) {
  const std::lock_guard lock(reservations->mutex);
  const auto found = reservations->all.find(address_of(address));
  if (found == reservations->all.end()) {
    return failure(Code::kInvalidParam, "no addresses that begin at ", address, " are reserved.");
  }
  if (const size_t left = found->second.mappings.size(); left > 0) {
    return failure(Code::kInvalidParam, left, left == 1 ? " piece" : " pieces",
                   " of memory must be unmapped before the addresses are released.");
  }
  munmap(address, found->second.bytes);
  {
    const std::lock_guard registry_lock(memory_registry().mutex);
    memory_registry().blocks.erase(found->first);  // one block without memory
    memory_registry().publish();
  }
  reservations->all.erase(found);
  return {};
}

Status map_physical(void* address, size_t bytes, const std::shared_ptr<PhysicalMemory>& memory) {
  const uintptr_t begin = address_of(address);
  if (bytes != memory->bytes) {
    return failure(Code::kInvalidParam, "size is ", bytes, ", but must be the ", memory->bytes,
                   " bytes of the physical memory.");
  }
  if (bytes % memory->granularity != 0) {
    return failure(Code::kInvalidParam, "size is ", bytes, ", but must be a multiple of the granularity, which is ",
                   memory->granularity, " bytes.");
  }
  if (begin % memory->granularity != 0) {
    return failure(Code::kInvalidParam, "virPtr is ", address, ", but must be a multiple of the granularity, which is ",
                   memory->granularity, " bytes.");
  }
  const std::lock_guard lock(reservations->mutex);
  const auto found = around(begin);
  if (found == reservations->all.end()) {
    return failure(Code::kInvalidParam, "virPtr is ", address, ", which does not lie in reserved addresses.");
  }
  const auto& [reserved_from, reservation] = *found;
  if (const size_t room = reserved_from + reservation.bytes - begin; bytes > room) {
    return failure(Code::kInvalidParam, "size is ", bytes, ", but ", room, " bytes of addresses are reserved from ",
                   address, " on.");
  }
  DESCEND_RETURN_IF_ERROR(check_free(reservation, begin, bytes));
  DESCEND_RETURN_IF_ERROR(check_company(reservation, *memory));
  const auto mapping = found->second.mappings.emplace(begin, Mapping{memory, bytes}).first;
  const auto undo = [&] {
    (void)leave_empty(address, bytes);
    found->second.mappings.erase(mapping);
  };
  if (!memory->file->map_at(address)) {
    const int error = errno;
    undo();
    return failure(kNoDeviceMemory, "the system maps no more memory: ", std::strerror(error), ".");
  }
  try {
    const std::lock_guard registry_lock(memory_registry().mutex);
    turn(begin, bytes, MemoryKind::kMapped, memory->device, reservation, reserved_from);
  } catch (...) {
    undo();
    throw;
  }
  return {};
}

Status unmap_physical(void* address) {
  const uintptr_t begin = address_of(address);
  Mapping* mapping = nullptr;  // is_leaving keeps other threads from removing it
  {
    const std::lock_guard lock(reservations->mutex);
    const auto found = around(begin);
    if (found != reservations->all.end()) {
      const auto at = found->second.mappings.find(begin);
      if (at != found->second.mappings.end() && !at->second.is_leaving) mapping = &at->second;
    }
    if (mapping == nullptr) return failure(Code::kInvalidParam, "no memory is mapped to ", address, ".");
    const std::lock_guard registry_lock(memory_registry().mutex);
    // From now on new work cannot use these addresses.
    turn(begin, mapping->bytes, MemoryKind::kReserved, kHostSide, found->second, found->first);
    mapping->is_leaving = true;
  }
  std::shared_ptr<PhysicalMemory> memory;  // ends without the locks
  std::exception_ptr no_memory_to_wait;
  try {
    wait_for_all_streams();
  } catch (...) {  // the work may still use it: it stays mapped
    no_memory_to_wait = std::current_exception();
  }
  const std::lock_guard lock(reservations->mutex);
  const auto found = around(begin);
  if (found == reservations->all.end()) return {};  // all was released meanwhile
  if (no_memory_to_wait || !leave_empty(address, mapping->bytes)) {
    const int error = errno;
    const std::lock_guard registry_lock(memory_registry().mutex);
    turn(begin, mapping->bytes, MemoryKind::kMapped, mapping->memory->device, found->second, found->first);
    mapping->is_leaving = false;
    if (no_memory_to_wait) std::rethrow_exception(no_memory_to_wait);
    return failure(kNoDeviceMemory, "the system does not unmap it: ", std::strerror(error), ".");
  }
  memory = std::move(mapping->memory);
  found->second.mappings.erase(begin);
  return {};
}

void release_all_reservations() {
  std::map<uintptr_t, Reservation> all;
  {
    const std::lock_guard lock(reservations->mutex);
    all.swap(reservations->all);
  }
  for (const auto& [begin, reservation] : all) munmap(pointer_to(begin), reservation.bytes);
}

void lock_reservations() { reservations->mutex.lock(); }
void unlock_reservations() { reservations->mutex.unlock(); }

}  // namespace descend
