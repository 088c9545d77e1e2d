// Memory and events that processes share. One process is both sides: what it exports it imports again.
#include <algorithm>
#include <cstring>

#include "runtime.h"

namespace fuzz {
namespace {

constexpr int kStale = 200005, kInvalid = 100000, kNotSupported = 200006, kNoPermission = 207006;
constexpr size_t kKeyBytes = 65, kMostPids = 900;

}  // namespace

void Runtime::share_memory() {
  switch (bytes_.below(4)) {
    case 0:
      return export_memory();
    case 1:
      return allow_import();
    case 2:
      return import_memory();
    default:
      return close_shared();
  }
}

// A key that was made, whether or not it still names anything; or one that was not.
const char* Runtime::pick_key(Share** share) {
  const int64_t i = bytes_.below(static_cast<int64_t>(shares_.size()) + 2);
  *share = nullptr;
  if (i >= static_cast<int64_t>(shares_.size())) {
    return bytes_.pick<const char*>({nullptr, "", "descend:", "descend:0:2:3", "descend:-1:-1:ffffffffffffffff",
                                     "descend:99999999999999999999:0:0", "descend:0:0:0 ", "no key of ours"});
  }
  *share = shares_[i].get();
  return shares_[i]->key;
}

void Runtime::export_memory() {
  Block* const block = pick_block();
  if (block == nullptr || shares_.size() >= 8) return;
  settle();
  const size_t held = block->contents.size();
  const auto size = static_cast<size_t>(bytes_.pick<int64_t>(
      {static_cast<int64_t>(held), static_cast<int64_t>(held), 1, 0, static_cast<int64_t>(held) + 1, -1}));
  const size_t length = bytes_.pick<size_t>({kKeyBytes, kKeyBytes, kKeyBytes, 128, 64, 0});
  const auto flags = bytes_.pick<uint64_t>({0, 1, 1, 0, 2, UINT64_MAX});
  const bool inside = bytes_.one_in(8), null = bytes_.one_in(8);
  Share* known = nullptr;
  for (const auto& share : shares_) {
    if (share->block == block && share->exports > 0) known = share.get();
  }
  bool fine = !inside && !null && length >= kKeyBytes && flags <= 1 && !block->on_host && held >= kPage;
  fine = fine && size >= 1 && size <= held && (known == nullptr || known->size == size);
  char key[128] = {};
  const int status = aclrtIpcMemGetExportKey(block->data + (inside ? 1 : 0), size, null ? nullptr : key, length, flags);
  // Not every system lets memory that is in use be shared: emulators and some containers do not.
  const bool may_not = std::strstr(aclGetRecentErrMsg(), "the system does not permit") != nullptr ||
                       std::strstr(aclGetRecentErrMsg(), "this system has no userfaultfd") != nullptr;
  if (fine && status == kNotSupported && may_not) return;
  expect("aclrtIpcMemGetExportKey", status, {fine ? 0 : kInvalid});
  if (!fine) return;
  if (known == nullptr) {
    shares_.push_back(std::make_unique<Share>());
    known = shares_.back().get();
    known->block = block, known->size = size;
    std::memcpy(known->key, key, kKeyBytes);
  }
  if (std::memcmp(known->key, key, kKeyBytes) != 0) fault("memory that is shared already has another key");
  ++known->exports;
  known->anyone = known->anyone || flags == 1;
}

void Runtime::allow_import() {
  Share* share = nullptr;
  const char* const key = pick_key(&share);
  const auto self = static_cast<int32_t>(getpid());
  const size_t count = bytes_.pick<size_t>({1, 2, 0, kMostPids, kMostPids + 1});
  std::vector<int32_t> pids(count, bytes_.pick<int32_t>({self, self, 1, 0, -1, INT32_MAX, INT32_MIN}));
  const bool null = bytes_.one_in(8);
  bool fine = share != nullptr && share->exports > 0 && !null && count > 0 && pids[0] > 0;
  fine = fine && count <= kMostPids - share->pids;
  expect("aclrtIpcMemSetImportPid", aclrtIpcMemSetImportPid(key, null ? nullptr : pids.data(), count),
         {fine ? 0 : kInvalid});
  if (!fine) return;
  share->pids += count;
  share->for_self = share->for_self || pids[0] == self;
}

void Runtime::import_memory() {
  Share* share = nullptr;
  const char* const key = pick_key(&share);
  settle();
  const auto flags = bytes_.pick<uint64_t>({0, 0, 1, 2});
  const bool null = bytes_.one_in(8);
  void* place = nullptr;
  int expected = kInvalid;
  if (share != nullptr && !null && flags <= 1 && share->imported == nullptr && share->exports > 0) {
    expected = share->anyone || share->for_self ? 0 : kNoPermission;
  }
  expect("aclrtIpcMemImportByKey", aclrtIpcMemImportByKey(null ? nullptr : &place, key, flags), {expected});
  if (expected != 0) return;
  share->imported = static_cast<char*>(place);
  if (std::memcmp(place, share->block->contents.data(), share->size) != 0) fault("imported memory holds other bytes");
  // What is written on one side is seen on the other.
  const int value = static_cast<int>(bytes_.below(256));
  expect("aclrtMemset", aclrtMemset(place, share->size, value, share->size), {0});
  std::memset(share->block->contents.data(), value, share->size);
  expect("aclrtMemset", aclrtMemset(place, SIZE_MAX, value, share->size + 1), {kInvalid});
  expect("aclrtFree", aclrtFree(place), {kInvalid});
  settle();
}

void Runtime::close_shared() {
  Share* share = nullptr;
  const char* const key = pick_key(&share);
  settle();
  const bool imported = share != nullptr && share->imported != nullptr;
  const bool fine = imported || (share != nullptr && share->exports > 0);
  expect("aclrtIpcMemClose", aclrtIpcMemClose(key), {fine ? 0 : kInvalid});
  if (imported) {
    share->imported = nullptr;
  } else if (fine && --share->exports == 0) {  // the next export has another key
    share->anyone = share->for_self = false;
  }
}

// After a block was freed: its keys name nothing any more. What was imported stays until it is closed.
void Runtime::forget_shares(const Block* block) {
  for (const auto& share : shares_) {
    if (share->block == block) share->block = nullptr, share->exports = 0;
  }
}

void Runtime::share_events() {
  aclrtEvent event = nullptr, opened = nullptr;
  const auto flag = bytes_.pick<uint32_t>({ACL_EVENT_IPC, ACL_EVENT_IPC, ACL_EVENT_IPC | ACL_EVENT_SYNC, 0x80000000U});
  const bool fine = flag == ACL_EVENT_IPC;
  expect("aclrtCreateEventExWithFlag", aclrtCreateEventExWithFlag(&event, flag), {fine ? 0 : kInvalid});
  if (!fine) return;
  aclrtIpcEventHandle handle{}, wrong{};
  expect("aclrtIpcGetEventHandle", aclrtIpcGetEventHandle(event, &handle), {0});
  expect("aclrtIpcGetEventHandle", aclrtIpcGetEventHandle(event, nullptr), {kInvalid});
  wrong = handle;
  // Its mark, or its numbers in the file system. Another process or file may be right: each thread's number is one.
  const int64_t place = bytes_.below(24);
  wrong.reserved[place < 8 ? place : place + 16] ^= static_cast<char>(1 + bytes_.below(255));
  expect("aclrtIpcOpenEventHandle", aclrtIpcOpenEventHandle(wrong, &opened), {kInvalid});
  expect("aclrtIpcOpenEventHandle", aclrtIpcOpenEventHandle(handle, &opened), {0});
  const Object stream = pick_stream();
  const bool swapped = bytes_.below(2) != 0;
  const aclrtEvent first = swapped ? opened : event, second = swapped ? event : opened;
  const auto check = [&](aclrtEventRecordedStatus wanted) {
    aclrtEventRecordedStatus status{};
    expect("aclrtQueryEventStatus", aclrtQueryEventStatus(second, &status), {0});
    if (status != wanted) fault("a shared event has another status on the other side");
  };
  check(ACL_EVENT_RECORDED_STATUS_NOT_READY);
  expect("aclrtRecordEvent", aclrtRecordEvent(first, stream.handle), {stream.alive ? 0 : kStale});
  if (stream.alive) {
    expect("aclrtStreamWaitEvent", aclrtStreamWaitEvent(stream.handle, second), {0});
    expect("aclrtSynchronizeEvent", aclrtSynchronizeEvent(second), {0});
    check(ACL_EVENT_RECORDED_STATUS_COMPLETE);
  }
  float time = 0;
  expect("aclrtResetEvent", aclrtResetEvent(first, nullptr), {kNotSupported});
  expect("aclrtEventElapsedTime", aclrtEventElapsedTime(&time, first, second), {kNotSupported});
  settle();
  expect("aclrtDestroyEvent", aclrtDestroyEvent(first), {0});
  expect("aclrtDestroyEvent", aclrtDestroyEvent(second), {0});
  expect("aclrtIpcOpenEventHandle", aclrtIpcOpenEventHandle(handle, &opened), {kInvalid});
}

}  // namespace fuzz
