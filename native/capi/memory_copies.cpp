// Copies, one at a time and in batches.
#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "capi/memory.h"

namespace descend::capi {
namespace {

Status invalid(const auto&... parts) { return failure(Code::kInvalidParam, parts...); }

Status check_kind(aclrtMemcpyKind kind) {
  if (kind <= ACL_MEMCPY_INTER_DEVICE_TO_DEVICE) return {};
  return invalid("kind is ", static_cast<int>(kind), ", which is none.");
}

// Checks rows of `width` bytes that lie `pitch` bytes apart.
Status check_rows(const char* name, const char* pitch_name, const void* begin, size_t pitch, size_t width,
                  size_t height) {
  if (width > pitch) return invalid("width is ", width, " bytes, but ", pitch_name, " only ", pitch, ".");
  size_t bytes = 0;
  if (height > 0 &&
      (__builtin_mul_overflow(height - 1, pitch, &bytes) || __builtin_add_overflow(bytes, width, &bytes))) {
    return invalid("height is ", height, " and ", pitch_name, " ", pitch, " bytes: more than an address can reach.");
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
  if (width == 0) return;  // the number of rows may be anything then
  for (size_t row = 0; row < height; ++row) {
    std::memmove(static_cast<char*>(dst) + row * dpitch, static_cast<const char*>(src) + row * spitch, width);
  }
}

// Whether this memory is registered or allocated here. If it is not, a copy must be done when the call returns.
bool is_known(const void* address) { return location_of(address).type != ACL_MEM_LOCATION_TYPE_UNREGISTERED; }

// Waits for what was submitted last. Failures are left for the next synchronization.
Status wait_for(aclrtStream handle) {
  std::shared_ptr<Stream> stream;
  DESCEND_RETURN_IF_ERROR(get_stream(handle, &stream));
  const auto done = std::make_shared<Event>();
  stream->record(done);
  (void)done->wait();
  return {};
}

struct Copy {
  void* dst;
  const void* src;
  size_t bytes;
};

const char* name_of(aclrtMemLocationType type) {
  return type == ACL_MEM_LOCATION_TYPE_DEVICE ? "a device" : "the host";
}

// Where memory lies. Unknown memory counts as the host's.
aclrtMemLocation real_location(const void* address) {
  aclrtMemLocation location = location_of(address);
  if (location.type == ACL_MEM_LOCATION_TYPE_UNREGISTERED) location.type = ACL_MEM_LOCATION_TYPE_HOST;
  return location;
}

Status check_location(const char* name, size_t i, const aclrtMemLocation& said, const aclrtMemLocation& real) {
  const bool host = said.type == ACL_MEM_LOCATION_TYPE_HOST || said.type == ACL_MEM_LOCATION_TYPE_HOST_NUMA;
  if (!host && said.type != ACL_MEM_LOCATION_TYPE_DEVICE) {
    return invalid("the location of ", name, "[", i, "] is of type ", static_cast<int>(said.type),
                   ", but must be ACL_MEM_LOCATION_TYPE_HOST, _HOST_NUMA or _DEVICE.");
  }
  if (host != (real.type == ACL_MEM_LOCATION_TYPE_HOST)) {
    return invalid(name, "[", i, "] is memory of ", name_of(real.type), ", not of ", name_of(said.type),
                   " as attrs says.");
  }
  if (host || said.id == real.id) return {};
  return invalid(name, "[", i, "] is memory of device ", real.id, ", not of device ", said.id, " as attrs says.");
}

struct Batch {
  void** dsts;
  const size_t* destMaxs;
  void** srcs;
  const size_t* sizes;
  size_t count;
  const aclrtMemcpyBatchAttr* attrs;
  const size_t* attrsIndexes;
  size_t numAttrs;
};

Status check_arrays(const Batch& batch) {
  if (batch.dsts == nullptr) return null_argument("dsts");
  if (batch.destMaxs == nullptr) return null_argument("destMaxs");
  if (batch.srcs == nullptr) return null_argument("srcs");
  if (batch.sizes == nullptr) return null_argument("sizes");
  if (batch.attrs == nullptr) return null_argument("attrs");
  if (batch.attrsIndexes == nullptr) return null_argument("attrsIndexes");
  if (batch.count == 0) return invalid("numBatches is 0, but must be at least 1.");
  if (batch.numAttrs == 0 || batch.numAttrs > batch.count) {
    return invalid("numAttrs is ", batch.numAttrs, ", but must be from 1 to numBatches, which is ", batch.count, ".");
  }
  if (batch.attrsIndexes[0] != 0) return invalid("attrsIndexes[0] is ", batch.attrsIndexes[0], ", but must be 0.");
  for (size_t k = 0; k < batch.numAttrs; ++k) {
    if (k > 0 && (batch.attrsIndexes[k] <= batch.attrsIndexes[k - 1] || batch.attrsIndexes[k] >= batch.count)) {
      return invalid("attrsIndexes[", k, "] is ", batch.attrsIndexes[k],
                     ", but must be more than the one before it and less than numBatches, which is ", batch.count, ".");
    }
    const auto& rsv = batch.attrs[k].rsv;
    if (std::any_of(std::begin(rsv), std::end(rsv), [](uint8_t byte) { return byte != 0; })) {
      return invalid("attrs[", k, "].rsv must be 0.");
    }
  }
  return {};
}

// Everything is checked before the first copy is made.
Status read_batch(const Batch& batch, size_t* failIndex, std::vector<Copy>* copies) {
  *failIndex = std::numeric_limits<size_t>::max();
  DESCEND_RETURN_IF_ERROR(check_arrays(batch));
  copies->reserve(batch.count);
  bool to_device = false;
  for (size_t i = 0, k = 0; i < batch.count; ++i) {
    if (k + 1 < batch.numAttrs && i == batch.attrsIndexes[k + 1]) ++k;
    const Copy copy{batch.dsts[i], batch.srcs[i], batch.sizes[i]};
    const aclrtMemLocation to = real_location(copy.dst), from = real_location(copy.src);
    const Status status = [&]() -> Status {
      DESCEND_RETURN_IF_ERROR(
          check_copy(batch.dsts[i], batch.destMaxs[i], batch.srcs[i], batch.sizes[i], ACL_MEMCPY_DEFAULT));
      DESCEND_RETURN_IF_ERROR(check_location("dsts", i, batch.attrs[k].dstLoc, to));
      DESCEND_RETURN_IF_ERROR(check_location("srcs", i, batch.attrs[k].srcLoc, from));
      if (to.type == from.type) {
        return invalid("copy ", i, " is from ", name_of(from.type), " to ", name_of(to.type),
                       ", but must be from host to device or from device to host.");
      }
      if (i == 0) to_device = to.type == ACL_MEM_LOCATION_TYPE_DEVICE;
      if (to_device == (to.type == ACL_MEM_LOCATION_TYPE_DEVICE)) return {};
      return invalid("copy ", i, " is to ", name_of(to.type), ", but copy 0 is not: all must go the same way.");
    }();
    if (!status.ok()) {
      *failIndex = i;
      return status;
    }
    copies->push_back(copy);
  }
  return {};
}

void make_copies(const std::vector<Copy>& copies) {
  for (const Copy& copy : copies) std::memmove(copy.dst, copy.src, copy.bytes);
}

}  // namespace

Status check_copy(void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind kind) {
  DESCEND_RETURN_IF_ERROR(check_kind(kind));
  if (count > destMax) return invalid("count is ", count, " bytes, but destMax only ", destMax, ".");
  DESCEND_RETURN_IF_ERROR(check_range("dst", dst, count));
  return check_range("src", src, count);
}

}  // namespace descend::capi

using namespace descend;
using namespace descend::capi;

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
    if (kind == ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE) {  // the caller may change the source once this returns
      const auto kept = std::make_shared<const std::string>(static_cast<const char*>(src), count);
      return submit(stream, count, [=] { std::memmove(dst, kept->data(), count); });
    }
    return submit(stream, count, [=] { std::memmove(dst, src, count); });
  });
}

aclError aclrtMemcpyAsyncWithCondition(void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind kind,
                                       aclrtStream stream) {
  return runtime_call("aclrtMemcpyAsyncWithCondition", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_copy(dst, destMax, src, count, kind));
    DESCEND_RETURN_IF_ERROR(submit(stream, count, [=] { std::memmove(dst, src, count); }));
    return is_known(dst) && is_known(src) ? Status{} : wait_for(stream);
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

aclError aclrtMemcpyBatch(void** dsts, size_t* destMaxs, void** srcs, size_t* sizes, size_t numBatches,
                          aclrtMemcpyBatchAttr* attrs, size_t* attrsIndexes, size_t numAttrs, size_t* failIndex) {
  return runtime_call("aclrtMemcpyBatch", [&]() -> Status {
    if (failIndex == nullptr) return null_argument("failIndex");
    std::vector<Copy> copies;
    DESCEND_RETURN_IF_ERROR(
        read_batch({dsts, destMaxs, srcs, sizes, numBatches, attrs, attrsIndexes, numAttrs}, failIndex, &copies));
    make_copies(copies);
    return {};
  });
}

aclError aclrtMemcpyBatchAsync(void** dsts, size_t* destMaxs, void** srcs, size_t* sizes, size_t numBatches,
                               aclrtMemcpyBatchAttr* attrs, size_t* attrsIndexes, size_t numAttrs, size_t* failIndex,
                               aclrtStream stream) {
  return runtime_call("aclrtMemcpyBatchAsync", [&]() -> Status {
    if (failIndex == nullptr) return null_argument("failIndex");
    std::vector<Copy> copies;
    DESCEND_RETURN_IF_ERROR(
        read_batch({dsts, destMaxs, srcs, sizes, numBatches, attrs, attrsIndexes, numAttrs}, failIndex, &copies));
    size_t bytes = 0;
    bool known = true;
    for (const Copy& copy : copies) {
      bytes += std::min(copy.bytes, std::numeric_limits<size_t>::max() - bytes);
      known = known && is_known(copy.dst) && is_known(copy.src);
    }
    DESCEND_RETURN_IF_ERROR(submit(stream, bytes, [copies = std::move(copies)] { make_copies(copies); }));
    return known ? Status{} : wait_for(stream);
  });
}

aclError aclrtCmoAsync(void* src, size_t size, aclrtCmoType cmoType, aclrtStream stream) {
  return runtime_call("aclrtCmoAsync", [&]() -> Status {
    if (cmoType > ACL_RT_CMO_TYPE_FLUSH) {
      return failure(Code::kInvalidParam, "cmoType is ", static_cast<int>(cmoType), ", which is none.");
    }
    if (cmoType != ACL_RT_CMO_TYPE_PREFETCH) {
      return failure(
          kNotSupported, "cmoType is ", static_cast<int>(cmoType),
          ", but only a prefetch (ACL_RT_CMO_TYPE_PREFETCH) is possible: the hardware keeps the caches coherent.");
    }
    if (size == 0) return failure(Code::kInvalidParam, "size is 0, but must be at least 1 byte.");
    DESCEND_RETURN_IF_ERROR(check_range("src", src, size));
    return submit(stream, size, [=] {
      constexpr size_t kLine = 64, kMost = size_t{32} << 20;  // more would evict what was fetched first
      const auto* const begin = static_cast<const char*>(src);
      for (size_t at = 0; at < std::min(size, kMost); at += kLine) __builtin_prefetch(begin + at);
    });
  });
}
