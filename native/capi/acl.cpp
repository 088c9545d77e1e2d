// Life cycle, device, memory and streams.
#include "acl/acl.h"

#include <atomic>
#include <cstring>

#include "aclnn/aclnn_base.h"
#include "capi/state.h"
#include "descend.h"
#include "kernels/isa.h"
#include "runtime/memory.h"
#include "runtime/pages.h"
#include "runtime/parallel.h"
#include "runtime/product.h"

namespace descend::capi {
namespace {

enum class Life : uint8_t { kBefore, kAlive, kAfter };

std::mutex life_mutex;  // aclInit and aclFinalize take turns
std::atomic<Life> life{Life::kBefore};
std::mutex default_stream_mutex;
std::shared_ptr<Stream> default_stream;

thread_local std::string recent_sentence;

Status invalid(const auto&... parts) { return failure(Code::kInvalidParam, parts...); }

Status check_device(int32_t device) {
  if (device == 0) return {};
  return failure(Code::kInvalidDevice, "device ", device, " does not exist; the only one is 0.");
}

// A range that begins inside a known allocation must end inside it; other host memory is taken as it is.
Status check_range(const char* name, const void* begin, size_t count) {
  const Allocation allocation = find_allocation(begin);
  if (!allocation) return {};
  const size_t room = allocation.bytes - static_cast<size_t>(static_cast<const char*>(begin) - allocation.begin);
  if (count <= room) return {};
  return invalid(name, " is asked for ", count, " bytes, but its allocation has ", room, " from there on.");
}

}  // namespace

State& state() {
  static auto* instance = new State();  // outlives every thread that may still call
  return *instance;
}

Status require_initialized() {
  if (life.load(std::memory_order_acquire) == Life::kAlive) return {};
  return failure(Code::kUninitialize, life == Life::kBefore ? "aclInit has not been called." : "aclFinalize has been called.");
}

std::shared_ptr<Stream> find_stream(const void* handle) {
  if (handle != nullptr) return state().streams.find(handle).value_or(nullptr);
  if (life != Life::kAlive) return nullptr;
  const std::lock_guard lock(default_stream_mutex);
  if (!default_stream) default_stream = std::make_shared<Stream>();
  return default_stream;
}

int32_t report(const char* function, const Status& status) noexcept {
  try {
    recent_sentence = function ? concat(function, ": ", status.sentence) : status.sentence;
  } catch (...) {
    recent_sentence.clear();
  }
  return static_cast<int32_t>(status.code);
}

}  // namespace descend::capi

using namespace descend;
using namespace descend::capi;

aclError aclInit(const char*) {
  return boundary("aclInit", []() -> Status {
    const std::lock_guard lock(life_mutex);
    if (life == Life::kAlive) return failure(Code::kRepeatInitialize, "it has been called already.");
    life = Life::kAlive;
    return {};
  });
}

aclError aclFinalize() {
  return boundary("aclFinalize", []() -> Status {
    const std::lock_guard lock(life_mutex);
    if (life == Life::kAfter) return failure(Code::kRepeatFinalize, "it has been called already.");
    DESCEND_RETURN_IF_ERROR(require_initialized());
    life = Life::kAfter;
    wait_for_all_streams();
    state().executors.clear();
    state().streams.clear();
    state().tensors.clear();
    state().int_arrays.clear();
    state().bool_arrays.clear();
    {
      const std::lock_guard stream_lock(default_stream_mutex);
      default_stream.reset();
    }
    release_all_allocations();
    trim_pages();
    return {};
  });
}

aclnnStatus aclnnInit(const char*) { return ACLNN_SUCCESS; }
aclnnStatus aclnnFinalize() { return ACLNN_SUCCESS; }

const char* aclGetRecentErrMsg() { return recent_sentence.c_str(); }

size_t aclDataTypeSize(aclDataType dataType) { return static_cast<size_t>(dtype_size(static_cast<Dtype>(dataType))); }

aclError aclrtSetDevice(int32_t deviceId) {
  return runtime_call("aclrtSetDevice", [&] { return check_device(deviceId); });
}

aclError aclrtResetDevice(int32_t deviceId) {
  return runtime_call("aclrtResetDevice", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_device(deviceId));
    wait_for_all_streams();
    return {};
  });
}

aclError aclrtGetDevice(int32_t* deviceId) {
  return runtime_call("aclrtGetDevice", [&]() -> Status {
    if (deviceId == nullptr) return invalid("deviceId is null, but must be given.");
    *deviceId = 0;
    return {};
  });
}

aclError aclrtGetDeviceCount(uint32_t* count) {
  return runtime_call("aclrtGetDeviceCount", [&]() -> Status {
    if (count == nullptr) return invalid("count is null, but must be given.");
    *count = 1;
    return {};
  });
}

aclError aclrtMalloc(void** devPtr, size_t size, aclrtMemMallocPolicy) {
  return runtime_call("aclrtMalloc", [&] { return allocate(size, devPtr); });
}

aclError aclrtFree(void* devPtr) {
  return runtime_call("aclrtFree", [&] { return release(devPtr); });
}

aclError aclrtMemcpy(void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind kind) {
  return runtime_call("aclrtMemcpy", [&]() -> Status {
    if (kind < ACL_MEMCPY_HOST_TO_HOST || kind > ACL_MEMCPY_DEFAULT) {
      return invalid("kind is ", static_cast<int>(kind), ", which is none.");
    }
    if (count > destMax) return invalid("count is ", count, " bytes, but destMax only ", destMax, ".");
    if (dst == nullptr) return invalid("dst is null, but must be given.");
    if (src == nullptr) return invalid("src is null, but must be given.");
    DESCEND_RETURN_IF_ERROR(check_range("dst", dst, count));
    DESCEND_RETURN_IF_ERROR(check_range("src", src, count));
    std::memmove(dst, src, count);
    return {};
  });
}

aclError aclrtCreateStream(aclrtStream* stream) {
  return runtime_call("aclrtCreateStream", [&]() -> Status {
    if (stream == nullptr) return invalid("stream is null, but must be given.");
    *stream = state().streams.insert(std::make_shared<Stream>());
    return {};
  });
}

aclError aclrtDestroyStream(aclrtStream stream) {
  return runtime_call("aclrtDestroyStream", [&]() -> Status {
    if (stream == nullptr) return {};
    const auto removed = state().streams.remove(stream);
    if (!removed) return failure(Code::kInvalidResourceHandle, "stream is not one, or has been destroyed already.");
    (void)(*removed)->synchronize();
    return {};
  });
}

aclError aclrtSynchronizeStream(aclrtStream stream) {
  return runtime_call("aclrtSynchronizeStream", [&]() -> Status {
    const auto found = find_stream(stream);
    if (!found) return failure(Code::kInvalidResourceHandle, "stream is not one, or has been destroyed already.");
    return found->synchronize();
  });
}

const char* descendGetVersion() { return DESCEND_VERSION; }

aclError descendSetProduct(const char* name) {
  return boundary("descendSetProduct", [&]() -> Status {
    if (name == nullptr) return invalid("name is null, but must be given.");
    return set_product(name);
  });
}

const char* descendGetProduct() {
  Product product;
  const int32_t code = boundary("descendGetProduct", [&] { return current_product(&product); });
  return code == 0 ? info(product).name : "";
}

aclError descendSetNumThreads(int count) {
  return boundary("descendSetNumThreads", [&]() -> Status {
    if (count < 0) return invalid("count is ", count, ", but must be at least 1, or 0 for the default.");
    set_num_threads(count);
    return {};
  });
}

int descendGetNumThreads() { return num_threads(); }
const char* descendGetIsa() { return kernels::isa_name(); }
