// Shared by the memory functions.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>

#include "acl/acl_rt.h"
#include "capi/stream.h"
#include "runtime/memory.h"

namespace descend::capi {

// A range that begins inside a known allocation must end inside it. Other memory is not checked.
Status check_range(const char* name, const void* begin, size_t count);

Status check_copy(void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind kind);

Status check_reserved(const char* name, uint64_t value, uint64_t most = 0);

// A list of processes: not empty, and each number above 0.
Status check_pids(const int32_t* pids, size_t count, const char* count_name);

// Puts body() on a stream; `bytes` is how much memory it touches.
template <class Body>
Status submit(aclrtStream handle, size_t bytes, Body body) {
  std::shared_ptr<Stream> stream;
  DESCEND_RETURN_IF_ERROR(get_stream(handle, &stream));
  stream->submit({[body = std::move(body)]() -> Status {
                    body();
                    return {};
                  },
                  static_cast<int64_t>(std::min<size_t>(bytes, INT64_MAX))});
  return {};
}

// Where memory lies: on the host, on a device, or unknown.
aclrtMemLocation location_of(const void* address);

}  // namespace descend::capi
