// Handles: what the C interface returns in place of addresses.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace descend::capi {

// A table of objects of one kind. A handle is the number of a slot and the slot's generation, encoded as a pointer that
// no allocation can have. So a stale or foreign handle is recognized, even after its slot was used again.
template <class T>
class HandleTable {
 public:
  explicit HandleTable(uint8_t kind) : kind_(kind) {}

  void* insert(T value) {
    const std::lock_guard lock(mutex_);
    uint32_t index;
    if (free_count_ > kMinFree) {  // the slot unused for longest, so that generations wrap late
      index = first_free_;
      first_free_ = slots_[index].next_free;
      --free_count_;
    } else {
      index = static_cast<uint32_t>(slots_.size());
      slots_.emplace_back();
    }
    try {
      slots_[index].value.emplace(std::move(value));
    } catch (...) {
      set_free(index);
      throw;
    }
    return encode(index, slots_[index].generation);
  }

  // Calls use(T&) on the object, under the table's lock. False if the handle names no object.
  template <class Use>
  bool with(const void* handle, Use use) {
    const std::lock_guard lock(mutex_);
    Slot* slot = find_slot(handle);
    if (slot == nullptr) return false;
    use(*slot->value);
    return true;
  }

  std::optional<T> find(const void* handle) {
    const std::lock_guard lock(mutex_);
    const Slot* slot = find_slot(handle);
    return slot ? slot->value : std::nullopt;
  }

  // Removes the object. Its handle is stale from now on.
  std::optional<T> remove(const void* handle) {
    const std::lock_guard lock(mutex_);
    Slot* slot = find_slot(handle);
    if (slot == nullptr) return std::nullopt;
    return take(index_of(handle));
  }

  // Removes every object for which is_meant(object) is true.
  template <class IsMeant>
  std::deque<T> remove_if(IsMeant is_meant) {
    const std::lock_guard lock(mutex_);
    std::deque<T> taken;
    for (uint32_t index = 0; index < slots_.size(); ++index) {
      if (slots_[index].value && is_meant(*slots_[index].value)) {
        taken.push_back(*slots_[index].value);
        (void)take(index);
      }
    }
    return taken;
  }

  std::deque<T> all() {
    const std::lock_guard lock(mutex_);
    std::deque<T> values;
    for (const Slot& slot : slots_) {
      if (slot.value) values.push_back(*slot.value);
    }
    return values;
  }

  // Calls use(T&) on every object, with the lock held.
  template <class Use>
  void for_each(Use use) {
    for (Slot& slot : slots_) {
      if (slot.value) use(*slot.value);
    }
  }

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

  void clear() {
    for (uint32_t index = 0;; ++index) {
      std::optional<T> value;  // destroyed without the lock, since a destructor may wait for work
      const std::lock_guard lock(mutex_);
      if (index >= slots_.size()) return;
      if (slots_[index].value) value = take(index);
    }
  }

 private:
  static constexpr size_t kMinFree = 64;
  static constexpr uint32_t kGenerationMask = (1u << 24) - 1;

  struct Slot {
    std::optional<T> value;
    uint32_t generation = 1;
    uint32_t next_free = 0;
  };

  // Called with the lock held. Allocates nothing, so that objects can be destroyed when there is no memory.
  std::optional<T> take(uint32_t index) {
    std::optional<T> value = std::exchange(slots_[index].value, std::nullopt);
    slots_[index].generation = (slots_[index].generation + 1) & kGenerationMask;
    set_free(index);
    return value;
  }
  void set_free(uint32_t index) {
    (free_count_++ == 0 ? first_free_ : slots_[last_free_].next_free) = index;
    last_free_ = index;
  }

  // kind (8 bits), generation (24), slot (31), 1. Odd, and above any address of a program.
  void* encode(uint32_t index, uint32_t generation) const {
    const uint64_t bits = uint64_t{kind_} << 56 | uint64_t{generation} << 32 | uint64_t{index} << 1 | 1;
    return reinterpret_cast<void*>(bits);
  }
  static uint32_t index_of(const void* handle) {
    return static_cast<uint32_t>(reinterpret_cast<uint64_t>(handle)) >> 1;
  }
  Slot* find_slot(const void* handle) {
    const uint32_t index = index_of(handle);
    if (index >= slots_.size() || !slots_[index].value) return nullptr;
    return encode(index, slots_[index].generation) == handle ? &slots_[index] : nullptr;
  }

  const uint8_t kind_;
  std::mutex mutex_;
  std::deque<Slot> slots_;
  // The free slots, in the order in which they became free.
  uint32_t first_free_ = 0, last_free_ = 0;
  size_t free_count_ = 0;
};

}  // namespace descend::capi
