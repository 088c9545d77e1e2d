// The version of CANN that this library stands in for.
#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>

#include "acl/acl_rt.h"
#include "capi/state.h"

using namespace descend;
using namespace descend::capi;

namespace {

struct Version {
  int major, minor, release;
  std::string text() const { return concat(major, '.', minor, '.', release); }
  int32_t number() const { return major * 10'000'000 + minor * 100'000 + release * 1'000; }
};
constexpr Version kCann{9, 1, 0}, kDriver{26, 1, 0};

constexpr std::array kPackages{
    "acl_extend",      "asc-devkit", "ge-compiler", "ge-executor", "hccl",     "hcomm",
    "metadef",         "opbase",     "ops_cv",      "ops_legacy",  "ops_math", "ops_nn",
    "ops_transformer", "opp",        "opp_kernel",  "compiler",    "runtime",  "toolkit",
};

Status find_version(const char* package, Version* version) {
  const std::string_view name = package;
  if (name == "driver") {
    *version = kDriver;
  } else if (std::find(kPackages.begin(), kPackages.end(), name) != kPackages.end()) {
    *version = kCann;
  } else {
    return failure(kInvalidFile, "CANN has no package \"", name, "\".");
  }
  return {};
}

template <size_t size>
void fill(char (&field)[size], const auto& value) {
  std::snprintf(field, size, "%s", concat(value).c_str());
}

}  // namespace

aclError aclrtGetVersion(int32_t* majorVersion, int32_t* minorVersion, int32_t* patchVersion) {
  return boundary("aclrtGetVersion", [&]() -> Status {
    if (majorVersion == nullptr) return null_argument("majorVersion");
    if (minorVersion == nullptr) return null_argument("minorVersion");
    if (patchVersion == nullptr) return null_argument("patchVersion");
    *majorVersion = ACL_MAJOR_VERSION;
    *minorVersion = ACL_MINOR_VERSION;
    *patchVersion = ACL_PATCH_VERSION;
    return {};
  });
}

aclError aclsysGetCANNVersion(aclCANNPackageName name, aclCANNPackageVersion* version) {
  return boundary("aclsysGetCANNVersion", [&]() -> Status {
    if (version == nullptr) return null_argument("version");
    if (name > ACL_PKG_NAME_DRIVER) {
      return failure(Code::kInvalidParam, "name is ", static_cast<int>(name), ", which is none.");
    }
    const Version& found = name == ACL_PKG_NAME_DRIVER ? kDriver : kCann;
    *version = {};
    fill(version->version, found.text());
    fill(version->majorVersion, found.major);
    fill(version->minorVersion, found.minor);
    fill(version->releaseVersion, found.release);
    return {};
  });
}

aclError aclsysGetVersionStr(char* pkgName, char* versionStr) {
  return boundary("aclsysGetVersionStr", [&]() -> Status {
    if (pkgName == nullptr) return null_argument("pkgName");
    if (versionStr == nullptr) return null_argument("versionStr");
    Version version;
    DESCEND_RETURN_IF_ERROR(find_version(pkgName, &version));
    std::snprintf(versionStr, ACL_PKG_VERSION_MAX_SIZE, "%s", version.text().c_str());
    return {};
  });
}

aclError aclsysGetVersionNum(char* pkgName, int32_t* versionNum) {
  return boundary("aclsysGetVersionNum", [&]() -> Status {
    if (pkgName == nullptr) return null_argument("pkgName");
    if (versionNum == nullptr) return null_argument("versionNum");
    Version version;
    DESCEND_RETURN_IF_ERROR(find_version(pkgName, &version));
    *versionNum = version.number();
    return {};
  });
}
