// Device memory: allocations, copies, fills.
#include "runtime/memory.h"

#include <unistd.h>

#include <cstring>

#include "acl/acl_rt.h"
#include "capi/state.h"

using namespace descend;
using namespace descend::capi;

namespace {

Status invalid(const auto&... parts) { return failure(Code::kInvalidParam, parts...); }

// A range that begins inside a known allocation must end inside it; other host memory is taken as it is.
Status check_range(const char* name, const void* begin, size_t count) {
  if (begin == nullptr) return null_argument(name);
  const Allocation allocation = find_allocation(begin);
  if (!allocation) return {};
  const size_t room = allocation.bytes - static_cast<size_t>(static_cast<const char*>(begin) - allocation.begin);
  if (count <= room) return {};
  return invalid(name, " is asked for ", count, " bytes, but its allocation has ", room, " from there on.");
}

Status check_kind(aclrtMemcpyKind kind) {
  if (kind <= ACL_MEMCPY_INTER_DEVICE_TO_DEVICE) return {};
  return invalid("kind is ", static_cast<int>(kind), ", which is none.");
}

Status check_copy(void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind kind) {
  DESCEND_RETURN_IF_ERROR(check_kind(kind));
  if (count > destMax) return invalid("count is ", count, " bytes, but destMax only ", destMax, ".");
  DESCEND_RETURN_IF_ERROR(check_range("dst", dst, count));
  return check_range("src", src, count);
}

// Rows of `width` bytes, `pitch` apart.
Status check_rows(const char* name, const char* pitch_name, const void* begin, size_t pitch, size_t width,
                  size_t height) {
  if (width > pitch) return invalid("width is ", width, " bytes, but ", pitch_name, " only ", pitch, ".");
  size_t bytes = 0;
  if (height > 0 &&
      (__builtin_mul_overflow(height - 1, pitch, &bytes) || __builtin_add_overflow(bytes, width, &bytes))) {
    return invalid("height is ", height, " and ", pitch_name, " ", pitch, " bytes, more than there can be.");
  }
  return check_range(name, begin, bytes);
}

Status check_copy_2d(void* dst, size_t dpitch, const void* src, size_t spitch, size_t width, size_t height,
                     aclrtMemcpyKind kind) {
  DESCEND_RETURN_IF_ERROR(check_kind(kind));
  DESCEND_RETURN_IF_ERROR(check_rows("dst", "dpitch", dst, dpitch, width, height));
  return check_rows("src", "spitch", src, spitch, width, height);
}

void copy_rows(void* dst, size_t dpitch, const void* src, size_t spitch, size_t width, size_t height) {
  if (width == 0) return;  // however many rows there are said to be
  for (size_t row = 0; row < height; ++row) {
    std::memmove(static_cast<char*>(dst) + row * dpitch, static_cast<const char*>(src) + row * spitch, width);
  }
}

Status check_fill(void* devPtr, size_t maxCount, size_t count) {
  if (count > maxCount) return invalid("count is ", count, " bytes, but maxCount only ", maxCount, ".");
  return check_range("devPtr", devPtr, count);
}

// Puts body() on a stream.
template <class Body>
Status submit(aclrtStream handle, size_t bytes, Body body) {
  std::shared_ptr<Stream> stream;
  DESCEND_RETURN_IF_ERROR(get_stream(handle, &stream));
  stream->submit({[body]() -> Status {
                    body();
                    return {};
                  },
                  static_cast<int64_t>(std::min<size_t>(bytes, INT64_MAX))});
  return {};
}

}  // namespace

aclError aclrtGetMemInfo(aclrtMemAttr attr, size_t* free, size_t* total) {
  return runtime_call("aclrtGetMemInfo", [&]() -> Status {
    if (attr > ACL_HBM_MEM_P2P_HUGE1G) {
      return invalid("attr is ", static_cast<int>(attr), ", which is none.");
    }
    if (free == nullptr) return null_argument("free");
    if (total == nullptr) return null_argument("total");
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    *free = static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * page;
    *total = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * page;
    return {};
  });
}

aclError aclrtMalloc(void** devPtr, size_t size, aclrtMemMallocPolicy) {
  return runtime_call("aclrtMalloc", [&] { return allocate(size, devPtr); });
}

aclError aclrtMallocAlign32(void** devPtr, size_t size, aclrtMemMallocPolicy) {
  return runtime_call("aclrtMallocAlign32", [&] { return allocate(size, devPtr); });
}

aclError aclrtMallocCached(void** devPtr, size_t size, aclrtMemMallocPolicy) {
  return runtime_call("aclrtMallocCached", [&] { return allocate(size, devPtr); });
}

aclError aclrtFree(void* devPtr) {
  return runtime_call("aclrtFree", [&] { return release(devPtr); });
}

aclError aclrtMallocHost(void** hostPtr, size_t size) {
  return runtime_call("aclrtMallocHost", [&] { return allocate(size, hostPtr); });
}

aclError aclrtFreeHost(void* hostPtr) {
  return runtime_call("aclrtFreeHost", [&] { return release(hostPtr); });
}

aclError aclrtMemset(void* devPtr, size_t maxCount, int32_t value, size_t count) {
  return runtime_call("aclrtMemset", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_fill(devPtr, maxCount, count));
    std::memset(devPtr, value, count);
    return {};
  });
}

aclError aclrtMemsetAsync(void* devPtr, size_t maxCount, int32_t value, size_t count, aclrtStream stream) {
  return runtime_call("aclrtMemsetAsync", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_fill(devPtr, maxCount, count));
    return submit(stream, count, [=] { std::memset(devPtr, value, count); });
  });
}

aclError aclrtMemcpy(void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind kind) {
  return runtime_call("aclrtMemcpy", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_copy(dst, destMax, src, count, kind));
    std::memmove(dst, src, count);
    return {};
  });
}

aclError aclrtMemcpyAsync(void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind kind,
                          aclrtStream stream) {
  return runtime_call("aclrtMemcpyAsync", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_copy(dst, destMax, src, count, kind));
    if (kind == ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE) {  // the source is the caller's again when this returns
      const auto kept = std::make_shared<const std::string>(static_cast<const char*>(src), count);
      return submit(stream, count, [=] { std::memmove(dst, kept->data(), count); });
    }
    return submit(stream, count, [=] { std::memmove(dst, src, count); });
  });
}

aclError aclrtMemcpy2d(void* dst, size_t dpitch, const void* src, size_t spitch, size_t width, size_t height,
                       aclrtMemcpyKind kind) {
  return runtime_call("aclrtMemcpy2d", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_copy_2d(dst, dpitch, src, spitch, width, height, kind));
    copy_rows(dst, dpitch, src, spitch, width, height);
    return {};
  });
}

aclError aclrtMemcpy2dAsync(void* dst, size_t dpitch, const void* src, size_t spitch, size_t width, size_t height,
                            aclrtMemcpyKind kind, aclrtStream stream) {
  return runtime_call("aclrtMemcpy2dAsync", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_copy_2d(dst, dpitch, src, spitch, width, height, kind));
    return submit(stream, width * height, [=] { copy_rows(dst, dpitch, src, spitch, width, height); });
  });
}
