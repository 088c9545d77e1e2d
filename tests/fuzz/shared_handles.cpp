// Physical memory that processes share by a handle. The second process (peer.h) imports what this one exports.
#include <algorithm>

#include "peer.h"
#include "runtime.h"

namespace fuzz {
namespace {

constexpr int kStale = 200005, kInvalid = 100000, kNoDevice = 200002, kNoPermission = 207006;
constexpr size_t kMostPids = 900;

}  // namespace

void Runtime::share_handles() {
  if (peer() == 0) return;  // it serves one thread, so several have none
  switch (bytes_.below(4)) {
    case 0:
      return export_handle();
    case 1:
      return allow_handle();
    case 2:
      return import_own_handle();
    default:
      return import_handle();
  }
}

// Whether physical memory still exists: until it was freed and is mapped nowhere.
bool Runtime::is_there(const Object& memory) const {
  return memory.alive || std::any_of(mapped_.begin(), mapped_.end(),
                                     [&](const auto& mapping) { return &physical_[mapping.second] == &memory; });
}

// A handle that was exported, whether or not its memory still exists; or one that names nothing, with null.
uint64_t Runtime::pick_shareable(Object** memory) {
  std::vector<Object*> exported;
  for (Object& one : physical_) {
    if (one.shareable != 0) exported.push_back(&one);
  }
  const int64_t i = bytes_.below(static_cast<int64_t>(exported.size()) + 1);
  *memory = nullptr;
  if (i == static_cast<int64_t>(exported.size())) {
    const uint64_t near = exported.empty() ? 0 : exported.back()->shareable;  // another number, or another file
    return bytes_.pick<uint64_t>({0, 1, UINT64_MAX, near ^ 1, near ^ 1 << 22});
  }
  *memory = exported[i];
  return exported[i]->shareable;
}

void Runtime::export_handle() {
  Object& memory = pick(physical_);
  const auto type = static_cast<aclrtMemHandleType>(bytes_.pick<int>({0, 0, 0, 0, 1, -1}));
  const auto flags = bytes_.pick<uint64_t>({0, 1, 1, 0, 2, UINT64_MAX});
  const bool null = bytes_.one_in(8);
  uint64_t shareable = 0;
  const int status = aclrtMemExportToShareableHandle(memory.handle, type, flags, null ? nullptr : &shareable);
  const bool arguments = type == ACL_MEM_HANDLE_TYPE_NONE && flags <= 1 && !null;
  Codes expected = only_if(arguments && memory.shareable == 0, kInvalid);
  if (!memory.alive) {
    const int code = memory.handle == nullptr ? kInvalid : kStale;
    expected = arguments ? Codes{code} : Codes{code, kInvalid};
  }
  expect("aclrtMemExportToShareableHandle", status, expected);
  if (status != 0) return;
  if (shareable == 0) fault("an export gave no handle");
  memory.shareable = shareable;
  memory.for_anyone = flags == 1;
}

void Runtime::allow_handle() {
  Object* memory = nullptr;
  const uint64_t shareable = pick_shareable(&memory);
  const size_t count = bytes_.pick<size_t>({1, 2, 0, kMostPids, kMostPids + 1});
  std::vector<int32_t> pids(count, bytes_.pick<int32_t>({peer(), peer(), getpid(), 0, -1, INT32_MAX, INT32_MIN}));
  const bool null = bytes_.one_in(8);
  const bool fine =
      memory != nullptr && is_there(*memory) && !null && count > 0 && pids[0] > 0 && count <= kMostPids - memory->pids;
  expect("aclrtMemSetPidToShareableHandle",
         aclrtMemSetPidToShareableHandle(shareable, null ? nullptr : pids.data(), count), {fine ? 0 : kInvalid});
  if (!fine) return;
  memory->pids += count;
  memory->for_peer = memory->for_peer || pids[0] == peer();
}

void Runtime::import_own_handle() {
  Object* memory = nullptr;
  const uint64_t shareable = pick_shareable(&memory);
  const auto device = bytes_.pick<int32_t>({0, 1, kDevices, -1});
  const bool null = bytes_.one_in(8), is_device = device >= 0 && device < kDevices;
  void* handle = nullptr;
  const int status = aclrtMemImportFromShareableHandle(shareable, device, null ? nullptr : &handle);
  expect("aclrtMemImportFromShareableHandle", status,
         is_device ? Codes{kInvalid}
         : null    ? Codes{kInvalid, kNoDevice}
                   : Codes{kNoDevice});
}

void Runtime::import_handle() {
  Object* memory = nullptr;
  Request request;
  request.shareable = pick_shareable(&memory);
  request.device = bytes_.pick<int32_t>({0, 1, 0, kDevices, -1});
  request.kind = bytes_.one_in(8) ? Request::kImportNull : Request::kImport;
  request.write = static_cast<char>(bytes_.below(256));
  Codes expected{kInvalid};
  if (memory != nullptr && is_there(*memory)) {
    request.bytes = memory->pages * kPage;
    expected = {memory->for_anyone || memory->for_peer ? 0 : kNoPermission};
  }
  if (request.device < 0 || request.device >= kDevices) expected = {kNoDevice};
  if (request.kind == Request::kImportNull) expected = {kInvalid, kNoDevice};
  // One memory: each process sees what the other one wrote.
  settle();
  char* here = nullptr;
  for (const auto& [page, index] : mapped_) {
    if (&physical_[index] == memory) here = reservation_ + page * kPage;
  }
  const char before = here != nullptr ? *here : 0;
  const Reply reply = ask(request);
  if (!expected.has(reply.status)) {
    fault("an import in another process returned " + std::to_string(reply.status) + " in place of " +
          std::to_string(*expected.begin()));
  }
  if (reply.status != 0) return;
  has_imports_ = true;
  if (here != nullptr && (reply.read != before || *here != request.write)) fault("shared memory has other bytes");
  // What was imported belongs to its owner.
  if (ask({Request::kExport}).status != kInvalid) fault("imported memory was exported");
}

}  // namespace fuzz
