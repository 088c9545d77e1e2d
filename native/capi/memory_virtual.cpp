// Virtual memory: reserved addresses, physical memory, and mappings between them. Physical memory shared by processes.
#include <algorithm>
#include <memory>
#include <utility>

#include "capi/memory.h"
#include "runtime/memory_registry.h"
#include "runtime/virtual_memory.h"

namespace descend::capi {
namespace {

using Physical = std::shared_ptr<PhysicalMemory>;

Status stale_physical() {
  return failure(Code::kInvalidResourceHandle, "handle is not physical memory, or has been freed already.");
}

Status get_physical(aclrtDrvMemHandle handle, Physical* memory) {
  if (handle == nullptr) return null_argument("handle");
  auto found = state().physical.find(handle);
  if (!found) return stale_physical();
  *memory = std::move(*found);
  return {};
}

// The granularity of memory with this attribute; 0 if there is no such memory.
size_t granularity_of(aclrtMemAttr attr, bool is_host) {
  switch (attr) {
    case ACL_MEM_NORMAL:
    case ACL_MEM_P2P_NORMAL:
      return detail::page_size();
    case ACL_DDR_MEM_NORMAL:
    case ACL_DDR_MEM_P2P_NORMAL:
      return is_host ? detail::page_size() : 0;
    case ACL_MEM_HUGE:
    case ACL_MEM_P2P_HUGE:
    case ACL_HBM_MEM_HUGE:
    case ACL_HBM_MEM_NORMAL:  // in CANN this comes in large pages, too
      return kReservationUnit;
    case ACL_DDR_MEM_HUGE:
    case ACL_DDR_MEM_P2P_HUGE:
      return is_host ? kReservationUnit : 0;
    case ACL_MEM_HUGE1G:
    case ACL_MEM_P2P_HUGE1G:
    case ACL_HBM_MEM_HUGE1G:
      return is_host ? 0 : kHugeReservationUnit;
    default:
      return 0;
  }
}

struct Wanted {
  size_t granularity;
  int device;
};
Status read_properties(const aclrtPhysicalMemProp* prop, Wanted* wanted) {
  if (prop == nullptr) return null_argument("prop");
  if (prop->handleType != ACL_MEM_HANDLE_TYPE_NONE) {
    return failure(Code::kInvalidParam, "prop->handleType is ", static_cast<int>(prop->handleType),
                   ", but must be ACL_MEM_HANDLE_TYPE_NONE.");
  }
  if (prop->allocationType != ACL_MEM_ALLOCATION_TYPE_PINNED) {
    return failure(Code::kInvalidParam, "prop->allocationType is ", static_cast<int>(prop->allocationType),
                   ", but must be ACL_MEM_ALLOCATION_TYPE_PINNED.");
  }
  const aclrtMemLocation& location = prop->location;
  if (location.type == ACL_MEM_LOCATION_TYPE_HOST_NUMA) {
    return failure(kNotSupported, "memory on a chosen NUMA node is not supported.");
  }
  const bool is_host = location.type == ACL_MEM_LOCATION_TYPE_HOST;
  if (!is_host && location.type != ACL_MEM_LOCATION_TYPE_DEVICE) {
    return failure(Code::kInvalidParam, "prop->location.type is ", static_cast<int>(location.type),
                   ", but must be ACL_MEM_LOCATION_TYPE_DEVICE or ACL_MEM_LOCATION_TYPE_HOST.");
  }
  wanted->device = is_host ? kHostSide : static_cast<int>(location.id);
  if (!is_host) DESCEND_RETURN_IF_ERROR(check_device(wanted->device));
  wanted->granularity = granularity_of(prop->memAttr, is_host);
  if (wanted->granularity > 0) return {};
  return failure(Code::kInvalidParam, "prop->memAttr is ", static_cast<int>(prop->memAttr), ", of which ",
                 is_host ? "the host" : "a device", " has no memory.");
}

}  // namespace
}  // namespace descend::capi

using namespace descend;
using namespace descend::capi;

aclError aclrtReserveMemAddress(void** virPtr, size_t size, size_t alignment, void* expectPtr, uint64_t flags) {
  return runtime_call("aclrtReserveMemAddress", [&]() -> Status {
    if (virPtr == nullptr) return null_argument("virPtr");
    DESCEND_RETURN_IF_ERROR(check_reserved("alignment", alignment));
    DESCEND_RETURN_IF_ERROR(check_reserved("flags", flags, 1));  // older programs give 1
    return reserve(size, expectPtr, virPtr);
  });
}

aclError aclrtReleaseMemAddress(void* virPtr) {
  return runtime_call("aclrtReleaseMemAddress", [&]() -> Status {
    if (virPtr == nullptr) return null_argument("virPtr");
    return release_reservation(virPtr);
  });
}

aclError aclrtMallocPhysical(aclrtDrvMemHandle* handle, size_t size, const aclrtPhysicalMemProp* prop, uint64_t flags) {
  return runtime_call("aclrtMallocPhysical", [&]() -> Status {
    if (handle == nullptr) return null_argument("handle");
    Wanted wanted{};
    DESCEND_RETURN_IF_ERROR(read_properties(prop, &wanted));
    DESCEND_RETURN_IF_ERROR(check_reserved("flags", flags));
    if (size == 0) return failure(Code::kInvalidParam, "size is 0, but must be at least 1 byte.");
    Physical memory;
    DESCEND_RETURN_IF_ERROR(create_physical(size, wanted.granularity, wanted.device, &memory));
    *handle = state().physical.insert(std::move(memory));
    return {};
  });
}

aclError aclrtFreePhysical(aclrtDrvMemHandle handle) {
  return runtime_call("aclrtFreePhysical", [&]() -> Status {
    if (handle == nullptr) return null_argument("handle");
    return state().physical.remove(handle) ? Status{} : stale_physical();
  });
}

aclError aclrtMapMem(void* virPtr, size_t size, size_t offset, aclrtDrvMemHandle handle, uint64_t flags) {
  return runtime_call("aclrtMapMem", [&]() -> Status {
    if (virPtr == nullptr) return null_argument("virPtr");
    DESCEND_RETURN_IF_ERROR(check_reserved("offset", offset));
    DESCEND_RETURN_IF_ERROR(check_reserved("flags", flags));
    Physical memory;
    DESCEND_RETURN_IF_ERROR(get_physical(handle, &memory));
    return map_physical(virPtr, size, memory);
  });
}

aclError aclrtUnmapMem(void* virPtr) {
  return runtime_call("aclrtUnmapMem", [&]() -> Status {
    if (virPtr == nullptr) return null_argument("virPtr");
    return unmap_physical(virPtr);
  });
}

aclError aclrtMemGetAllocationGranularity(aclrtPhysicalMemProp* prop, aclrtMemGranularityOptions option,
                                          size_t* granularity) {
  return runtime_call("aclrtMemGetAllocationGranularity", [&]() -> Status {
    if (granularity == nullptr) return null_argument("granularity");
    Wanted wanted{};
    DESCEND_RETURN_IF_ERROR(read_properties(prop, &wanted));
    if (option > ACL_RT_MEM_ALLOC_GRANULARITY_RECOMMENDED) {
      return failure(Code::kInvalidParam, "option is ", static_cast<int>(option), ", which is none.");
    }
    const bool least = option == ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM;
    *granularity = least ? wanted.granularity : std::max(wanted.granularity, kReservationUnit);
    return {};
  });
}

aclError aclrtMemExportToShareableHandle(aclrtDrvMemHandle handle, aclrtMemHandleType handleType, uint64_t flags,
                                         uint64_t* shareableHandle) {
  return runtime_call("aclrtMemExportToShareableHandle", [&]() -> Status {
    if (shareableHandle == nullptr) return null_argument("shareableHandle");
    if (handleType != ACL_MEM_HANDLE_TYPE_NONE) {
      return failure(Code::kInvalidParam, "handleType is ", static_cast<int>(handleType),
                     ", but must be ACL_MEM_HANDLE_TYPE_NONE.");
    }
    DESCEND_RETURN_IF_ERROR(check_reserved("flags", flags, ACL_RT_VMM_EXPORT_FLAG_DISABLE_PID_VALIDATION));
    Physical memory;
    DESCEND_RETURN_IF_ERROR(get_physical(handle, &memory));
    return export_physical(*memory, flags != ACL_RT_VMM_EXPORT_FLAG_DEFAULT, shareableHandle);
  });
}

aclError aclrtMemSetPidToShareableHandle(uint64_t shareableHandle, int32_t* pid, size_t pidNum) {
  return runtime_call("aclrtMemSetPidToShareableHandle", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_pids(pid, pidNum, "pidNum"));
    return allow_physical(shareableHandle, pid, pidNum);
  });
}

aclError aclrtMemImportFromShareableHandle(uint64_t shareableHandle, int32_t deviceId, aclrtDrvMemHandle* handle) {
  return runtime_call("aclrtMemImportFromShareableHandle", [&]() -> Status {
    if (handle == nullptr) return null_argument("handle");
    DESCEND_RETURN_IF_ERROR(check_device(deviceId));
    Physical memory;
    DESCEND_RETURN_IF_ERROR(import_physical(shareableHandle, deviceId, &memory));
    *handle = state().physical.insert(std::move(memory));
    return {};
  });
}
