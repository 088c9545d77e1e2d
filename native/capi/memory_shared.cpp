// Allocations that processes share by a key.
#include <cstring>

#include "capi/context.h"
#include "capi/memory.h"
#include "runtime/shared_file.h"
#include "runtime/shared_memory.h"

namespace descend::capi {

Status check_pids(const int32_t* pids, size_t count, const char* count_name) {
  if (pids == nullptr) return null_argument("pid");
  if (count == 0) return failure(Code::kInvalidParam, count_name, " is 0, but must be at least 1.");
  for (size_t i = 0; i < count; ++i) {
    if (pids[i] <= 0) return failure(Code::kInvalidParam, "pid[", i, "] is ", pids[i], ", but must be above 0.");
  }
  return {};
}

}  // namespace descend::capi

using namespace descend;
using namespace descend::capi;

aclError aclrtIpcMemGetExportKey(void* devPtr, size_t size, char* key, size_t len, uint64_t flags) {
  return runtime_call("aclrtIpcMemGetExportKey", [&]() -> Status {
    if (key == nullptr) return null_argument("key");
    if (len < kKeyBytes) return failure(Code::kInvalidParam, "len is ", len, ", but must be ", kKeyBytes, ".");
    DESCEND_RETURN_IF_ERROR(check_reserved("flags", flags, ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION));
    std::string text;
    DESCEND_RETURN_IF_ERROR(export_allocation(devPtr, size, flags != ACL_RT_IPC_MEM_EXPORT_FLAG_DEFAULT, &text));
    std::memset(key, 0, kKeyBytes);  // programs send all bytes to other processes
    std::memcpy(key, text.data(), text.size());
    return {};
  });
}

aclError aclrtIpcMemSetImportPid(const char* key, int32_t* pid, size_t num) {
  return runtime_call("aclrtIpcMemSetImportPid", [&]() -> Status {
    if (key == nullptr) return null_argument("key");
    DESCEND_RETURN_IF_ERROR(check_pids(pid, num, "num"));
    return allow_import(key, pid, num);
  });
}

aclError aclrtIpcMemImportByKey(void** devPtr, const char* key, uint64_t flags) {
  return runtime_call("aclrtIpcMemImportByKey", [&]() -> Status {
    if (devPtr == nullptr) return null_argument("devPtr");
    if (key == nullptr) return null_argument("key");
    DESCEND_RETURN_IF_ERROR(check_reserved("flags", flags, ACL_RT_IPC_MEM_IMPORT_FLAG_ENABLE_PEER_ACCESS));
    return import_allocation(key, current_device(), devPtr);
  });
}

aclError aclrtIpcMemClose(const char* key) {
  return runtime_call("aclrtIpcMemClose", [&]() -> Status {
    if (key == nullptr) return null_argument("key");
    return close_shared(key);
  });
}
