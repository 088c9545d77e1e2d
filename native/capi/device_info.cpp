// Properties and state of a device: of this machine, as far as the process may use it.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <thread>

#include "capi/device_table.h"
#include "capi/state.h"
#include "runtime/device_memory.h"
#include "runtime/machine.h"

using namespace descend;
using namespace descend::capi;

namespace {

// The size of the third-level cache, or of the second-level one if there is no third. 0 if the system does not tell.
int64_t shared_cache() {
#if defined(_SC_LEVEL3_CACHE_SIZE)
  for (const int level : {_SC_LEVEL3_CACHE_SIZE, _SC_LEVEL2_CACHE_SIZE}) {
    if (const long size = sysconf(level); size > 0) return size;
  }
#endif
  return 0;
}

Status physical_number(int32_t device, int32_t* number) {
  DESCEND_RETURN_IF_ERROR(check_device(device));
  const std::vector<int32_t>* numbers = nullptr;
  DESCEND_RETURN_IF_ERROR(visible_devices(&numbers));
  *number = (*numbers)[static_cast<size_t>(device)];
  return {};
}

Status user_number(int32_t physical, int32_t* device) {
  const std::vector<int32_t>* numbers = nullptr;
  DESCEND_RETURN_IF_ERROR(visible_devices(&numbers));
  for (size_t i = 0; i < numbers->size(); ++i) {
    if ((*numbers)[i] != physical) continue;
    *device = static_cast<int32_t>(i);
    return {};
  }
  return failure(Code::kInvalidDevice, "device ", physical, " of the machine is not visible to this process.");
}

// Converts between a device's number in the machine and its number in this process.
template <class Convert>
int32_t convert(const char* function, const char* name, int32_t number, int32_t* result, Convert to) noexcept {
  return runtime_call(function, [&]() -> Status { return result ? to(number, result) : null_argument(name); });
}

struct Times {
  uint64_t busy = 0, all = 0;
};

// The times of all processors since the machine started.
bool read_times(Times* times) {
  std::ifstream file("/proc/stat");
  std::string word;
  if (!(file >> word) || word != "cpu") return false;
  uint64_t value = 0;
  for (int i = 0; i < 8 && file >> value; ++i) {  // user nice system idle iowait irq softirq steal
    times->all += value;
    if (i != 3 && i != 4) times->busy += value;
  }
  return times->all > 0;
}

// How busy the processors are, in percent, measured over 50 ms. -1 if the system does not tell.
int32_t processors_in_use() {
  constexpr auto kMoment = std::chrono::milliseconds(50);  // the system counts in ticks of 10 ms
  Times before, after;
  if (!read_times(&before)) return -1;
  std::this_thread::sleep_for(kMoment);
  if (!read_times(&after) || after.all <= before.all) return -1;
  return static_cast<int32_t>((after.busy - before.busy) * 100 / (after.all - before.all));
}

// An identifier made from a hash of the machine's own and the device's number, so that it does not reveal the
// machine's.
void fill_uuid(int32_t physical, char (&bytes)[16]) {
  std::string identity;
  std::getline(std::ifstream("/etc/machine-id"), identity);
  if (identity.empty()) {
    char name[256] = {};
    (void)gethostname(name, sizeof(name) - 1);
    identity = name;
  }
  identity += concat("/descend/", physical);
  for (uint64_t half = 0; half < 2; ++half) {
    uint64_t hash = 14695981039346656037u + half;
    for (const char letter : identity) hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211u;
    hash ^= hash >> 31;
    hash *= 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
    std::memcpy(bytes + 8 * half, &hash, 8);
  }
}

Status read_attribute(int32_t device, aclrtDevAttr attribute, int64_t* value) {
  int32_t physical = 0;
  DESCEND_RETURN_IF_ERROR(physical_number(device, &physical));
  switch (attribute) {
    case ACL_DEV_ATTR_AICPU_CORE_NUM:
    case ACL_DEV_ATTR_AICORE_CORE_NUM:
    case ACL_DEV_ATTR_CUBE_CORE_NUM:
    case ACL_DEV_ATTR_VECTOR_CORE_NUM:
      *value = usable_cores();
      return {};
    case ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE:
      *value = static_cast<int64_t>(std::min<uint64_t>(device_memory(device).total, INT64_MAX));
      return {};
    case ACL_DEV_ATTR_L2_CACHE_SIZE:
      *value = shared_cache();
      return {};
    case ACL_DEV_ATTR_SMP_ID:  // one operating system runs all devices
    case ACL_DEV_ATTR_IS_VIRTUAL:
      *value = 0;
      return {};
    case ACL_DEV_ATTR_PHY_CHIP_ID:
      *value = physical;
      return {};
    default:
      break;
  }
  return failure(kFeatureUnsupported, "attr is ", static_cast<int>(attribute),
                 ", an attribute that this device does not have.");
}

}  // namespace

aclError aclrtGetDeviceInfo(uint32_t deviceId, aclrtDevAttr attr, int64_t* value) {
  return runtime_call("aclrtGetDeviceInfo", [&]() -> Status {
    if (value == nullptr) return null_argument("value");
    return read_attribute(static_cast<int32_t>(deviceId), attr, value);
  });
}

aclError aclGetDeviceCapability(uint32_t deviceId, aclDeviceInfo deviceInfo, int64_t* value) {
  return runtime_call("aclGetDeviceCapability", [&]() -> Status {
    if (value == nullptr) return null_argument("value");
    switch (deviceInfo) {
      case ACL_DEVICE_INFO_AI_CORE_NUM:
        return read_attribute(static_cast<int32_t>(deviceId), ACL_DEV_ATTR_AICORE_CORE_NUM, value);
      case ACL_DEVICE_INFO_VECTOR_CORE_NUM:
        return read_attribute(static_cast<int32_t>(deviceId), ACL_DEV_ATTR_VECTOR_CORE_NUM, value);
      case ACL_DEVICE_INFO_L2_SIZE:
        return read_attribute(static_cast<int32_t>(deviceId), ACL_DEV_ATTR_L2_CACHE_SIZE, value);
      default:
        return failure(Code::kInvalidParam, "deviceInfo is ", static_cast<int>(deviceInfo), ", which is none.");
    }
  });
}

aclError aclrtGetDeviceUtilizationRate(int32_t deviceId, aclrtUtilizationInfo* utilizationInfo) {
  return runtime_call("aclrtGetDeviceUtilizationRate", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_device(deviceId));
    if (utilizationInfo == nullptr) return null_argument("utilizationInfo");
    if (utilizationInfo->utilizationExtend != nullptr) {
      return failure(Code::kInvalidParam, "utilizationExtend is reserved, and must be null.");
    }
    const int32_t percent = processors_in_use();
    *utilizationInfo = {percent, percent, percent, -1, nullptr};
    return {};
  });
}

aclError aclrtDeviceGetUuid(int32_t deviceId, aclrtUuid* uuid) {
  return runtime_call("aclrtDeviceGetUuid", [&]() -> Status {
    if (uuid == nullptr) return null_argument("uuid");
    int32_t physical = 0;
    DESCEND_RETURN_IF_ERROR(physical_number(deviceId, &physical));
    fill_uuid(physical, uuid->bytes);
    return {};
  });
}

aclError aclrtDeviceGetBareTgid(int32_t* pid) {
  return runtime_call("aclrtDeviceGetBareTgid", [&]() -> Status {
    if (pid == nullptr) return null_argument("pid");
    *pid = getpid();
    return {};
  });
}

aclError aclrtGetLogicDevIdByUserDevId(const int32_t userDevid, int32_t* const logicDevId) {
  return convert("aclrtGetLogicDevIdByUserDevId", "logicDevId", userDevid, logicDevId, physical_number);
}

aclError aclrtGetUserDevIdByLogicDevId(const int32_t logicDevId, int32_t* const userDevid) {
  return convert("aclrtGetUserDevIdByLogicDevId", "userDevid", logicDevId, userDevid, user_number);
}

aclError aclrtGetPrimaryCtxState(int32_t deviceId, uint32_t* flags, int32_t* active) {
  return runtime_call("aclrtGetPrimaryCtxState", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_device(deviceId));
    if (flags == nullptr && active == nullptr) {
      return failure(Code::kInvalidParam, "flags and active are null, but one of them must be given.");
    }
    if (flags != nullptr) *flags = 0;
    const bool made = with_device(deviceId, [](const DeviceState& now) { return now.default_context != nullptr; });
    if (active != nullptr) *active = made;
    return {};
  });
}

aclError aclrtQueryDeviceStatus(int32_t deviceId, aclrtDeviceStatus* deviceStatus) {
  return runtime_call("aclrtQueryDeviceStatus", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_device(deviceId));
    if (deviceStatus == nullptr) return null_argument("deviceStatus");
    *deviceStatus = ACL_RT_DEVICE_STATUS_NORMAL;
    return {};
  });
}

// If a processor fails, the process ends with it. So there is never an error to report, and none to repair.
aclError aclrtGetErrorVerbose(int32_t deviceId, aclrtErrorInfo* errorInfo) {
  return runtime_call("aclrtGetErrorVerbose", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_device(deviceId));
    if (errorInfo == nullptr) return null_argument("errorInfo");
    *errorInfo = {};
    errorInfo->errorType = ACL_RT_NO_ERROR;
    return {};
  });
}

aclError aclrtRepairError(int32_t deviceId, const aclrtErrorInfo* errorInfo) {
  return runtime_call("aclrtRepairError", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_device(deviceId));
    if (errorInfo == nullptr) return null_argument("errorInfo");
    if (errorInfo->errorType == ACL_RT_NO_ERROR) return {};
    return failure(kFeatureUnsupported, "errorType is ", static_cast<int>(errorInfo->errorType),
                   ", but errors of the hardware cannot be repaired.");
  });
}

aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode mode) {
  return runtime_call("aclrtSetDeviceSatMode", [&]() -> Status {
    if (mode == ACL_RT_OVERFLOW_MODE_INFNAN) return {};
    if (mode == ACL_RT_OVERFLOW_MODE_SATURATION) {
      return {kFeatureUnsupported, "results cannot be saturated: a number that overflows becomes infinite."};
    }
    return failure(Code::kInvalidParam, "mode is ", static_cast<int>(mode), ", which is none.");
  });
}

aclError aclrtGetDeviceSatMode(aclrtFloatOverflowMode* mode) {
  return runtime_call("aclrtGetDeviceSatMode", [&]() -> Status {
    if (mode == nullptr) return null_argument("mode");
    *mode = ACL_RT_OVERFLOW_MODE_INFNAN;
    return {};
  });
}
