// Registration of host memory.
#include "capi/memory.h"
#include "runtime/registered_memory.h"

using namespace descend;
using namespace descend::capi;

namespace {

Status not_supported(const char* what) { return failure(kNotSupported, "memory cannot be registered as ", what, "."); }

}  // namespace

aclError aclrtHostRegister(void* ptr, uint64_t size, aclrtHostRegisterType type, void** devPtr) {
  return runtime_call("aclrtHostRegister", [&]() -> Status {
    if (devPtr == nullptr) return null_argument("devPtr");
    if (type == ACL_HOST_REGISTER_IOMEMORY) return not_supported("memory of an I/O device");
    if (type == ACL_HOST_REGISTER_READONLY) return not_supported("read-only");
    if (type != ACL_HOST_REGISTER_MAPPED) {
      return failure(Code::kInvalidParam, "type is ", static_cast<int>(type), ", which is none.");
    }
    DESCEND_RETURN_IF_ERROR(register_memory(ptr, size, true));
    *devPtr = ptr;
    return {};
  });
}

aclError aclrtHostRegisterV2(void* ptr, uint64_t size, uint32_t flag) {
  return runtime_call("aclrtHostRegisterV2", [&]() -> Status {
    constexpr uint32_t kKnown =
        ACL_HOST_REG_MAPPED | ACL_HOST_REG_IOMEMORY | ACL_HOST_REG_READONLY | ACL_HOST_REG_PINNED;
    if (flag == 0 || (flag & ~kKnown) != 0) {
      return failure(Code::kInvalidParam, "flag is ", flag,
                     ", but must be made of ACL_HOST_REG_MAPPED and ACL_HOST_REG_PINNED.");
    }
    if ((flag & ACL_HOST_REG_IOMEMORY) != 0) return not_supported("memory of an I/O device");
    if ((flag & ACL_HOST_REG_READONLY) != 0) return not_supported("read-only");
    if ((flag & ACL_HOST_REG_PINNED) != 0 && ptr != nullptr && find_allocation(ptr)) {
      return failure(Code::kInvalidParam, "ptr is memory of this library, which is pinned already.");
    }
    return register_memory(ptr, size, (flag & ACL_HOST_REG_MAPPED) != 0);
  });
}

aclError aclrtHostUnregister(void* ptr) {
  return runtime_call("aclrtHostUnregister", [&] { return unregister_memory(ptr); });
}

aclError aclrtHostGetDevicePointer(void* pHost, void** pDevice, uint32_t flag) {
  return runtime_call("aclrtHostGetDevicePointer", [&]() -> Status {
    if (pHost == nullptr) return null_argument("pHost");
    if (pDevice == nullptr) return null_argument("pDevice");
    DESCEND_RETURN_IF_ERROR(check_reserved("flag", flag));
    if (!find_registered_memory(pHost).is_mapped) {
      return failure(kNotRegistered, "no memory at ", pHost, " is registered as mapped.");
    }
    *pDevice = pHost;
    return {};
  });
}
