// Functions of the profiler and of graph capture that programs call even when they use neither: libraries report to the
// profiler, and allocators ask whether a capture is under way. There is no profiler and no capture, and the answers say
// so. Functions that need one of them are in unsupported.cpp.
#include <chrono>
#include <string_view>
#include <utility>

#include "acl/acl_rt.h"
#include "capi/state.h"
#include "capi/stream.h"

using namespace descend;
using namespace descend::capi;

namespace {

// Msprof's codes.
constexpr Code kMsprofError{5}, kMsprofUninitialized{6};
// The driver's.
constexpr Code kDriverInvalid{3}, kDriverUnsupported{0xfffe};

int32_t report_nowhere(const char* function, const void* data) noexcept {
  if (data == nullptr) return report(function, kMsprofError, "there is no data.");
  return report(function, kMsprofUninitialized, "there is no profiler of the device.");
}

thread_local aclmdlRICaptureMode capture_mode = ACL_MODEL_RI_CAPTURE_MODE_GLOBAL;

}  // namespace

extern "C" {

// Two functions of the driver's library, libascend_hal.so, tell torch_npu's profiler which clock to read. With no
// frequency of the device's clock it reads the host's. This version of the interface is the first that has one.
ACL_FUNC_VISIBILITY int32_t halGetAPIVersion(int32_t* version) {
  if (version == nullptr) return report("halGetAPIVersion", kDriverInvalid, "version is null, but must be given.");
  *version = 0x071905;
  return 0;
}

ACL_FUNC_VISIBILITY int32_t halGetDeviceInfo(uint32_t, int32_t, int32_t, int64_t*) {
  return report("halGetDeviceInfo", kDriverUnsupported, "there is no driver that could be asked about a device.");
}

// The callback would be called when profiling starts. It never starts.
ACL_FUNC_VISIBILITY int32_t MsprofRegisterCallback(uint32_t, int32_t (*handle)(uint32_t, void*, uint32_t)) {
  return handle != nullptr ? 0 : report("MsprofRegisterCallback", kMsprofError, "handle is null, but must be given.");
}

ACL_FUNC_VISIBILITY int32_t MsprofReportApi(uint32_t, const void* api) {
  return report_nowhere("MsprofReportApi", api);
}

ACL_FUNC_VISIBILITY int32_t MsprofReportCompactInfo(uint32_t, const void* data, uint32_t) {
  return report_nowhere("MsprofReportCompactInfo", data);
}

ACL_FUNC_VISIBILITY int32_t MsprofReportAdditionalInfo(uint32_t, const void* data, uint32_t) {
  return report_nowhere("MsprofReportAdditionalInfo", data);
}

// FNV-1a; UINT64_MAX if there is nothing to hash.
ACL_FUNC_VISIBILITY uint64_t MsprofGetHashId(const char* hashInfo, size_t length) {
  if (hashInfo == nullptr || length == 0) return UINT64_MAX;
  uint64_t hash = 14695981039346656037u;
  for (const char letter : std::string_view(hashInfo, length)) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211u;
  }
  return hash;
}

// Nanoseconds of the monotonic clock.
ACL_FUNC_VISIBILITY uint64_t MsprofSysCycleTime() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

}  // extern "C"

aclError aclmdlRICaptureGetInfo(aclrtStream stream, aclmdlRICaptureStatus* status, aclmdlRI* modelRI) {
  return runtime_call("aclmdlRICaptureGetInfo", [&]() -> Status {
    if (status == nullptr && modelRI == nullptr) {
      return failure(Code::kInvalidParam, "status and modelRI are null, but one of them must be given.");
    }
    std::shared_ptr<Stream> found;
    if (stream != nullptr) DESCEND_RETURN_IF_ERROR(get_stream(stream, &found));
    if (status != nullptr) *status = ACL_MODEL_RI_CAPTURE_STATUS_NONE;
    if (modelRI != nullptr) *modelRI = nullptr;
    return {};
  });
}

// The mode says which calls are allowed during a capture. Nothing is ever captured here.
aclError aclmdlRICaptureThreadExchangeMode(aclmdlRICaptureMode* mode) {
  return runtime_call("aclmdlRICaptureThreadExchangeMode", [&]() -> Status {
    if (mode == nullptr) return null_argument("mode");
    if (*mode > ACL_MODEL_RI_CAPTURE_MODE_RELAXED) {
      return failure(Code::kInvalidParam, "mode is ", static_cast<int>(*mode), ", which is none.");
    }
    std::swap(*mode, capture_mode);
    return {};
  });
}
