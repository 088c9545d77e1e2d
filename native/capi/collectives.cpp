// Functions of HCCL beside the collectives, which are not supported (unsupported.cpp).
#include "acl/acl_base.h"
#include "capi/settings.h"

using namespace descend;
using namespace descend::capi;

namespace {

constexpr Code kHcclParameter{1}, kHcclPointer{2};  // HCCL's codes

Status check_config(int config) {
  if (config == 0) return {};  // HCCL_DETERMINISTIC
  return failure(kHcclParameter, "config is ", config, ", but must be HCCL_DETERMINISTIC, which is 0.");
}

}  // namespace

extern "C" {

ACL_FUNC_VISIBILITY int32_t HcclSetConfig(int config, int32_t value) {
  return boundary("HcclSetConfig", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_config(config));
    with_settings([&](Settings& now) { now.deterministic_collectives = value; });
    return {};
  });
}

ACL_FUNC_VISIBILITY int32_t HcclGetConfig(int config, int32_t* value) {
  return boundary("HcclGetConfig", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_config(config));
    if (value == nullptr) return failure(kHcclPointer, "configValue is null, but must be given.");
    *value = with_settings([](const Settings& now) { return now.deterministic_collectives; });
    return {};
  });
}

// No bit: none of a communicator's settings can be set.
ACL_FUNC_VISIBILITY uint32_t HcclGetCommConfigCapability() { return 0; }

}  // extern "C"
