// Memory: allocations, copies, fills, reserved addresses and what is mapped to them.
#include <algorithm>
#include <cstring>

#include "runtime.h"

namespace fuzz {
namespace {

constexpr int kStale = 200005, kInvalid = 100000, kNoMemory = 200000;
int foreign;  // what a result holds before the call

}  // namespace

void Runtime::allocate() {
  const bool on_host = bytes_.below(2) != 0;
  const auto size =
      static_cast<size_t>(bytes_.pick<int64_t>({64, 1, 4096, 100, 5000, 0, INT64_MAX, -1, int64_t{1} << 60}));
  void* data = &foreign;
  const int status = on_host ? aclrtMallocHost(&data, size) : aclrtMalloc(&data, size, ACL_MEM_MALLOC_NORMAL_ONLY);
  const bool fine = size > 0 && size <= 5000;
  expect(on_host ? "aclrtMallocHost" : "aclrtMalloc", status, {fine ? 0 : size == 0 ? kInvalid : kNoMemory});
  if (!fine) {
    if (data != &foreign) fault("a refused allocation wrote its result");
    return;
  }
  blocks_.push_back(std::make_unique<Block>());
  blocks_.back()->data = static_cast<char*>(data);
  blocks_.back()->on_host = on_host;
  blocks_.back()->device = device_;
  blocks_.back()->contents.assign(size, 7);
  std::memset(data, 7, size);
}

void Runtime::release() {
  const Block* block = pick_block();
  if (block == nullptr) return;
  settle();
  char* const data = block->data;
  const bool on_host = block->on_host, inside = bytes_.one_in(4) && block->contents.size() > 1;
  const auto end = [&](char* place) { return on_host ? aclrtFreeHost(place) : aclrtFree(place); };
  if (inside) return expect("aclrtFree", end(data + 1), {kInvalid});
  expect("aclrtFree", end(data), {0});
  expect("aclrtFree", end(data), {kInvalid});
  forget_shares(block);
  blocks_.erase(std::find_if(blocks_.begin(), blocks_.end(), [&](const auto& other) { return other->data == data; }));
}

void Runtime::fill() {
  Block* const block = pick_block();
  if (block == nullptr) return;
  settle();
  const auto begin = static_cast<size_t>(bytes_.below(static_cast<int64_t>(block->contents.size())));
  const size_t room = block->contents.size() - begin;
  const auto count = bytes_.one_in(4) ? static_cast<size_t>(bytes_.hostile()) : room / 2;
  const size_t most = bytes_.one_in(4) ? count / 2 : count;
  const auto value = static_cast<int32_t>(bytes_.number());
  const Object stream = pick_stream();
  const bool async = bytes_.below(2) != 0, fine = count <= most && count <= room;
  Codes expected = only_if(fine, kInvalid);
  if (async && !stream.alive) expected = fine ? Codes{kStale} : Codes{kStale, kInvalid};
  const int status = async ? aclrtMemsetAsync(block->data + begin, most, value, count, stream.handle)
                           : aclrtMemset(block->data + begin, most, value, count);
  expect("aclrtMemset", status, expected);
  if (status == 0) std::memset(block->contents.data() + begin, value, count);
}

void Runtime::copy() {
  Block *const to = pick_block(), *const from = pick_block();
  if (to == nullptr || to == from) return;
  settle();
  const size_t begin = static_cast<size_t>(bytes_.below(static_cast<int64_t>(from->contents.size())));
  const size_t room = std::min(to->contents.size(), from->contents.size() - begin);
  const size_t count = bytes_.one_in(4) ? static_cast<size_t>(bytes_.hostile()) : room;
  const size_t most = bytes_.one_in(4) ? room / 2 : std::max(room, count);
  const auto kind = static_cast<aclrtMemcpyKind>(bytes_.pick<int>({4, 0, 1, 2, 3, 8, -1}));
  const Object stream = pick_stream();
  const bool async = bytes_.below(2) != 0, fine = count <= most && count <= room && kind <= 7;
  Codes expected = only_if(fine, kInvalid);
  if (async && !stream.alive) expected = fine ? Codes{kStale} : Codes{kStale, kInvalid};
  const int status = async ? aclrtMemcpyAsync(to->data, most, from->data + begin, count, kind, stream.handle)
                           : aclrtMemcpy(to->data, most, from->data + begin, count, kind);
  expect("aclrtMemcpy", status, expected);
  if (status == 0 && count > 0) std::memcpy(to->contents.data(), from->contents.data() + begin, count);
}

void Runtime::copy_rows() {
  Block *const to = pick_block(), *const from = pick_block();
  if (to == nullptr || to == from) return;
  settle();
  const auto number = [this] { return static_cast<size_t>(bytes_.pick<int64_t>({4, 1, 8, 16, bytes_.hostile()})); };
  const size_t width = number(), height = number(), dpitch = number(), spitch = number();
  const auto fits = [&](size_t pitch, size_t size) {
    const auto end = static_cast<unsigned __int128>(pitch) * (height - 1) + width;
    return end <= size;
  };
  const bool none = width == 0 || height == 0;
  const bool fine =
      width <= dpitch && width <= spitch && fits(dpitch, to->contents.size()) && fits(spitch, from->contents.size());
  const int status = aclrtMemcpy2d(to->data, dpitch, from->data, spitch, width, height, ACL_MEMCPY_DEFAULT);
  expect("aclrtMemcpy2d", status, none ? Codes{0, kInvalid} : only_if(fine, kInvalid));
  for (size_t row = 0; status == 0 && !none && row < height; ++row) {
    std::memcpy(to->contents.data() + row * dpitch, from->contents.data() + row * spitch, width);
  }
}

void Runtime::reserve() {
  void* start = nullptr;
  switch (bytes_.below(4)) {
    case 0:
      if (reservation_ != nullptr) return;
      expect("aclrtReserveMemAddress", aclrtReserveMemAddress(&start, kReserved, 0, nullptr, 0), {0});
      reservation_ = static_cast<char*>(start);
      return;
    case 1: {
      const bool fine = reservation_ != nullptr && mapped_.empty();
      expect("aclrtReleaseMemAddress", aclrtReleaseMemAddress(reservation_), only_if(fine, kInvalid));
      if (fine) reservation_ = nullptr;
      return;
    }
    case 2: {
      if (physical_.size() >= 8) return;
      const auto pages = static_cast<size_t>(1 + bytes_.below(3));
      aclrtPhysicalMemProp prop{};
      prop.memAttr = ACL_MEM_NORMAL;
      prop.location.type = ACL_MEM_LOCATION_TYPE_DEVICE;
      make(physical_, "aclrtMallocPhysical",
           [&](void** handle) { return aclrtMallocPhysical(handle, pages * kPage, &prop, 0); });
      physical_.back().pages = pages;
      return;
    }
    default: {
      Object& memory = pick(physical_);
      const int code = memory.handle == nullptr ? kInvalid : kStale;
      expect("aclrtFreePhysical", aclrtFreePhysical(memory.handle), only_if(memory.alive, code));
      memory.alive = false;
    }
  }
}

void Runtime::map() {
  if (reservation_ == nullptr) return;
  const auto page = static_cast<size_t>(bytes_.pick<int64_t>({0, 1, 2, 3, 4, 510, 511, 512}));
  char* const place = reservation_ + page * kPage;
  const auto mapping = mapped_.find(page);
  if (bytes_.below(3) == 2) {
    const bool fine = mapping != mapped_.end();
    expect("aclrtUnmapMem", aclrtUnmapMem(place), only_if(fine, kInvalid));
    if (fine) mapped_.erase(mapping);
    return;
  }
  if (physical_.empty()) return;
  const auto index = static_cast<size_t>(bytes_.below(static_cast<int64_t>(physical_.size())));
  const Object& memory = physical_[index];
  const size_t pages = bytes_.one_in(6) ? 4 : memory.pages;
  bool fine = pages == memory.pages && (page + pages) * kPage <= kReserved;
  for (const auto& [first, other] : mapped_) {
    fine = fine && (page + pages <= first || first + physical_[other].pages <= page);
  }
  Codes expected = only_if(fine, kInvalid);
  if (!memory.alive) expected = fine ? Codes{kStale} : Codes{kStale, kInvalid};
  const int status = aclrtMapMem(place, pages * kPage, 0, memory.handle, 0);
  expect("aclrtMapMem", status, expected);
  if (status != 0) return;
  mapped_[page] = index;
  expect("aclrtMemset", aclrtMemset(place, pages * kPage, 1, pages * kPage), {0});
}

}  // namespace fuzz
