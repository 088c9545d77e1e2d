// Memory of devices and of the host: allocations, fills, attributes.
#include "runtime/memory.h"

#include <algorithm>
#include <cstring>

#include "capi/context.h"
#include "capi/memory.h"
#include "runtime/device_memory.h"
#include "runtime/memory_registry.h"
#include "runtime/registered_memory.h"

namespace descend::capi {

Status check_range(const char* name, const void* begin, size_t count) {
  if (begin == nullptr) return null_argument(name);
  const Allocation allocation = find_allocation(begin);
  if (!allocation || count <= allocation.room(begin)) return {};
  if (allocation.kind == MemoryKind::kReserved) {
    return failure(Code::kInvalidParam, name, " lies in reserved addresses to which no memory is mapped.");
  }
  return failure(Code::kInvalidParam, name, " must have ", count, " bytes, but its allocation has ",
                 allocation.room(begin), " from there on.");
}

Status check_reserved(const char* name, uint64_t value, uint64_t most) {
  if (value <= most) return {};
  return failure(Code::kInvalidParam, name, " is ", value, most == 0 ? ", but must be 0." : ", but must be 0 or 1.");
}

aclrtMemLocation location_of(const void* address) {
  const Allocation around = find_allocation(address);
  if (around && around.kind != MemoryKind::kReserved) {
    if (around.device == kHostSide) return {0, ACL_MEM_LOCATION_TYPE_HOST};
    return {static_cast<uint32_t>(around.device), ACL_MEM_LOCATION_TYPE_DEVICE};
  }
  return {0, find_registered_memory(address) ? ACL_MEM_LOCATION_TYPE_HOST : ACL_MEM_LOCATION_TYPE_UNREGISTERED};
}

namespace {

Status check_fill(void* devPtr, size_t maxCount, size_t count) {
  if (count > maxCount) {
    return failure(Code::kInvalidParam, "count is ", count, " bytes, but maxCount only ", maxCount, ".");
  }
  return check_range("devPtr", devPtr, count);
}

Status allocate_here(size_t size, void** devPtr) { return allocate(size, devPtr, current_device()); }

Status check_configuration(const aclrtMallocConfig& cfg) {
  if (cfg.numAttrs > 0 && cfg.attrs == nullptr) return null_argument("cfg->attrs");
  for (size_t i = 0; i < cfg.numAttrs; ++i) {
    const aclrtMallocAttribute& attribute = cfg.attrs[i];
    switch (attribute.attr) {
      case ACL_RT_MEM_ATTR_RSV:
      case ACL_RT_MEM_ATTR_MODULE_ID:
        break;
      case ACL_RT_MEM_ATTR_DEVICE_ID:
        if (static_cast<int64_t>(attribute.value.deviceId) != current_device()) {
          return failure(Code::kInvalidParam, "deviceId is ", attribute.value.deviceId,
                         ", but must be the current device, which is ", current_device(), ".");
        }
        break;
      case ACL_RT_MEM_ATTR_VA_FLAG:
        DESCEND_RETURN_IF_ERROR(check_reserved("vaFlag", attribute.value.vaFlag, 1));
        break;
      default:
        return failure(Code::kInvalidParam, "cfg->attrs[", i, "].attr is ", static_cast<int>(attribute.attr),
                       ", which is none.");
    }
  }
  return {};
}

}  // namespace
}  // namespace descend::capi

using namespace descend;
using namespace descend::capi;

aclError aclrtMalloc(void** devPtr, size_t size, aclrtMemMallocPolicy) {
  return runtime_call("aclrtMalloc", [&] { return allocate_here(size, devPtr); });
}

aclError aclrtMallocAlign32(void** devPtr, size_t size, aclrtMemMallocPolicy) {
  return runtime_call("aclrtMallocAlign32", [&] {
    Status status = allocate_here(size, devPtr);
    // torch_npu allocates by this function. It raises torch.OutOfMemoryError for this code alone.
    if (status.code == Code::kBadAlloc) status.code = kNoDeviceMemory;
    return status;
  });
}

aclError aclrtMallocCached(void** devPtr, size_t size, aclrtMemMallocPolicy) {
  return runtime_call("aclrtMallocCached", [&] { return allocate_here(size, devPtr); });
}

aclError aclrtFree(void* devPtr) {
  return runtime_call("aclrtFree", [&] { return release(devPtr); });
}

aclError aclrtMallocHost(void** hostPtr, size_t size) {
  return runtime_call("aclrtMallocHost", [&] { return allocate(size, hostPtr, kHostSide); });
}

aclError aclrtMallocHostWithCfg(void** ptr, uint64_t size, aclrtMallocConfig* cfg) {
  return runtime_call("aclrtMallocHostWithCfg", [&]() -> Status {
    if (cfg != nullptr) DESCEND_RETURN_IF_ERROR(check_configuration(*cfg));
    return allocate(size, ptr, kHostSide);
  });
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

aclError aclrtPointerGetAttributes(const void* ptr, aclrtPtrAttributes* attributes) {
  return runtime_call("aclrtPointerGetAttributes", [&]() -> Status {
    if (ptr == nullptr) return null_argument("ptr");
    if (attributes == nullptr) return null_argument("attributes");
    *attributes = {};
    attributes->location = location_of(ptr);
    attributes->pageSize = static_cast<uint32_t>(detail::page_size());
    return {};
  });
}

aclError aclrtGetMemInfo(aclrtMemAttr attr, size_t* free, size_t* total) {
  return runtime_call("aclrtGetMemInfo", [&]() -> Status {
    if (attr > ACL_HBM_MEM_P2P_HUGE1G) {
      return failure(Code::kInvalidParam, "attr is ", static_cast<int>(attr), ", which is none.");
    }
    if (free == nullptr) return null_argument("free");
    if (total == nullptr) return null_argument("total");
    const DeviceMemory memory = device_memory(current_device());
    *free = memory.free;
    *total = memory.total;
    return {};
  });
}

aclError aclrtGetMemUsageInfo(int32_t deviceId, aclrtMemUsageInfo* memUsageInfo, size_t inputNum, size_t* outputNum) {
  return runtime_call("aclrtGetMemUsageInfo", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_device(deviceId));
    if (memUsageInfo == nullptr) return null_argument("memUsageInfo");
    if (outputNum == nullptr) return null_argument("outputNum");
    if (inputNum == 0) return failure(Code::kInvalidParam, "inputNum is 0, but must be at least 1.");
    const DeviceMemory memory = device_memory(deviceId);
    aclrtMemUsageInfo usage{};
    std::strcpy(usage.name, "APP");
    usage.curMemSize = memory.used;
    usage.memPeakSize = memory.peak;
    *memUsageInfo = usage;
    *outputNum = 1;
    return {};
  });
}

aclError aclrtGetMemUceInfo(int32_t deviceId, aclrtMemUceInfo* memUceInfoArray, size_t arraySize, size_t* retSize) {
  return runtime_call("aclrtGetMemUceInfo", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_device(deviceId));
    if (memUceInfoArray == nullptr) return null_argument("memUceInfoArray");
    if (retSize == nullptr) return null_argument("retSize");
    if (arraySize == 0 || arraySize > MAX_MEM_UCE_INFO_ARRAY_SIZE) {
      return failure(Code::kInvalidParam, "arraySize is ", arraySize, ", but must be from 1 to ",
                     MAX_MEM_UCE_INFO_ARRAY_SIZE, ".");
    }
    *retSize = 0;
    return {};
  });
}

aclError aclrtMemUceRepair(int32_t deviceId, aclrtMemUceInfo* memUceInfoArray, size_t arraySize) {
  return runtime_call("aclrtMemUceRepair", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_device(deviceId));
    if (memUceInfoArray == nullptr) return null_argument("memUceInfoArray");
    if (arraySize == 0) return failure(Code::kInvalidParam, "arraySize is 0, but must be at least 1.");
    return failure(Code::kInvalidParam, "no error of the memory at ", memUceInfoArray[0].addr,
                   " is known, so none can be repaired.");
  });
}
