#include "capi/settings.h"

#include <algorithm>
#include <cstring>

#include "acl/acl_rt.h"
#include "runtime/immortal.h"

namespace descend::capi {
namespace {

Immortal<LockedSettings> kept;

Status check_compile_option(aclCompileOpt opt) {
  if (opt < CompileOptions().size()) return {};
  return failure(Code::kInvalidParam, "opt is ", static_cast<int>(opt), ", which is none.");
}

// The arithmetic has infinities and NaN on every product: nothing saturates.
constexpr std::array kAttributes{ACL_CANN_ATTR_INF_NAN, ACL_CANN_ATTR_BF16};

}  // namespace

Status check_option(aclSysParamOpt opt) {
  if (opt <= ACL_OPT_STRONG_CONSISTENCY) return {};
  return failure(Code::kInvalidParam, "opt is ", static_cast<int>(opt),
                 ", but must be ACL_OPT_DETERMINISTIC, ACL_OPT_ENABLE_DEBUG_KERNEL or ACL_OPT_STRONG_CONSISTENCY.");
}

Status check_option(aclSysParamOpt opt, int64_t value) {
  DESCEND_RETURN_IF_ERROR(check_option(opt));
  if (value == 0 || value == 1) return {};
  return failure(Code::kInvalidParam, "value is ", value, ", but must be 0 or 1.");
}

LockedSettings& locked_settings() { return *kept; }

void forget_settings() {
  with_settings([](Settings& now) { now = Settings(); });
}

void lock_settings() { kept->mutex.lock(); }
void unlock_settings() { kept->mutex.unlock(); }

}  // namespace descend::capi

using namespace descend;
using namespace descend::capi;

aclError aclrtGetSysParamOpt(aclSysParamOpt opt, int64_t* value) {
  return runtime_call("aclrtGetSysParamOpt", [&]() -> Status {
    if (value == nullptr) return null_argument("value");
    DESCEND_RETURN_IF_ERROR(check_option(opt));
    with_settings([&](const Settings& now) { *value = now.options[opt]; });
    return {};
  });
}

aclError aclrtSetSysParamOpt(aclSysParamOpt opt, int64_t value) {
  return runtime_call("aclrtSetSysParamOpt", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_option(opt, value));
    with_settings([&](Settings& now) { now.options[opt] = value; });
    return {};
  });
}

aclError aclGetCannAttributeList(const aclCannAttr** cannAttrList, size_t* num) {
  return runtime_call("aclGetCannAttributeList", [&]() -> Status {
    if (cannAttrList == nullptr) return null_argument("cannAttrList");
    if (num == nullptr) return null_argument("num");
    *cannAttrList = kAttributes.data();
    *num = kAttributes.size();
    return {};
  });
}

aclError aclGetCannAttribute(aclCannAttr cannAttr, int32_t* value) {
  return runtime_call("aclGetCannAttribute", [&]() -> Status {
    if (value == nullptr) return null_argument("value");
    if (cannAttr < ACL_CANN_ATTR_INF_NAN || cannAttr > ACL_CANN_ATTR_JIT_COMPILE) {
      return failure(Code::kInvalidParam, "cannAttr is ", static_cast<int>(cannAttr), ", which is none.");
    }
    *value = std::find(kAttributes.begin(), kAttributes.end(), cannAttr) != kAttributes.end();
    return {};
  });
}

aclError aclSetCompileopt(aclCompileOpt opt, const char* value) {
  return runtime_call("aclSetCompileopt", [&]() -> Status {
    if (value == nullptr) return null_argument("value");
    DESCEND_RETURN_IF_ERROR(check_compile_option(opt));
    std::string text = value;
    if (opt == ACL_OP_JIT_COMPILE && text != "enable" && text != "disable") {
      return failure(Code::kInvalidParam, "value is \"", text, "\", but must be \"enable\" or \"disable\".");
    }
    with_settings([&](Settings& now) { now.compile_options[opt] = std::move(text); });
    return {};
  });
}

size_t aclGetCompileoptSize(aclCompileOpt opt) {
  size_t size = 0;
  (void)runtime_call("aclGetCompileoptSize", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_compile_option(opt));
    with_settings([&](const Settings& now) {
      if (const auto& value = now.compile_options[opt]) size = value->size() + 1;
    });
    return {};
  });
  return size;
}

aclError aclGetCompileopt(aclCompileOpt opt, char* value, size_t length) {
  return runtime_call("aclGetCompileopt", [&]() -> Status {
    if (value == nullptr) return null_argument("value");
    DESCEND_RETURN_IF_ERROR(check_compile_option(opt));
    const auto found = with_settings([&](const Settings& now) { return now.compile_options[opt]; });
    if (!found) return failure(Code::kInvalidParam, "opt is ", static_cast<int>(opt), ", which has not been set.");
    if (length <= found->size()) {
      return failure(Code::kInvalidParam, "length is ", length, ", but the value takes ", found->size() + 1, " bytes.");
    }
    std::memcpy(value, found->c_str(), found->size() + 1);
    return {};
  });
}
