// Information about devices, limits, settings and versions.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "acl/acl_op_compiler.h"
#include "capi_runtime.h"

namespace {

// Device 0 is the machine's 1, and device 1 its 3.
const bool kSet = setenv("DESCEND_DEVICES", "4", 1) == 0 && setenv("ASCEND_RT_VISIBLE_DEVICES", "1,3", 1) == 0;

int64_t attribute(aclrtDevAttr asked, uint32_t device = 0) {
  int64_t value = -1;
  CHECK(aclrtGetDeviceInfo(device, asked, &value) == 0);
  return value;
}

std::string uuid(int32_t device) {
  aclrtUuid found = {};
  CHECK(aclrtDeviceGetUuid(device, &found) == 0);
  return std::string(found.bytes, sizeof(found.bytes));
}

}  // namespace

TEST_CASE("what a device has") {
  REQUIRE(kSet);
  const Runtime runtime;
  const int64_t cores = attribute(ACL_DEV_ATTR_AICORE_CORE_NUM);
  CHECK(cores >= 1);
  CHECK(cores <= sysconf(_SC_NPROCESSORS_ONLN));
  CHECK(attribute(ACL_DEV_ATTR_VECTOR_CORE_NUM, 1) == cores);
  CHECK(attribute(ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE) > int64_t{1} << 20);
  CHECK(attribute(ACL_DEV_ATTR_PHY_CHIP_ID, 0) == 1);
  CHECK(attribute(ACL_DEV_ATTR_PHY_CHIP_ID, 1) == 3);
  CHECK(attribute(ACL_DEV_ATTR_IS_VIRTUAL) == 0);
  int64_t value = -1;
  REFUSED(ACL_ERROR_FEATURE_UNSUPPORTED, "aclrtGetDeviceInfo", aclrtGetDeviceInfo(0, ACL_DEV_ATTR_WARP_SIZE, &value));
  REFUSED(ACL_ERROR_INVALID_DEVICE, "aclrtGetDeviceInfo", aclrtGetDeviceInfo(2, ACL_DEV_ATTR_IS_VIRTUAL, &value));
  REFUSED(ACL_ERROR_INVALID_DEVICE, "aclrtGetDeviceInfo", aclrtGetDeviceInfo(~0u, ACL_DEV_ATTR_IS_VIRTUAL, &value));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtGetDeviceInfo", aclrtGetDeviceInfo(0, ACL_DEV_ATTR_IS_VIRTUAL, nullptr));
  CHECK(value == -1);
  CHECK(aclGetDeviceCapability(0, ACL_DEVICE_INFO_VECTOR_CORE_NUM, &value) == 0);
  CHECK(value == cores);
  CHECK(aclGetDeviceCapability(1, ACL_DEVICE_INFO_L2_SIZE, &value) == 0);
  CHECK(value == attribute(ACL_DEV_ATTR_L2_CACHE_SIZE));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclGetDeviceCapability",
          aclGetDeviceCapability(0, ACL_DEVICE_INFO_UNDEFINED, &value));

  int32_t number = -1;
  CHECK(aclrtGetLogicDevIdByUserDevId(1, &number) == 0);
  CHECK(number == 3);
  CHECK(aclrtGetUserDevIdByLogicDevId(1, &number) == 0);
  CHECK(number == 0);
  REFUSED(ACL_ERROR_INVALID_DEVICE, "aclrtGetUserDevIdByLogicDevId", aclrtGetUserDevIdByLogicDevId(2, &number));
  REFUSED(ACL_ERROR_INVALID_DEVICE, "aclrtGetLogicDevIdByUserDevId", aclrtGetLogicDevIdByUserDevId(2, &number));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtGetLogicDevIdByUserDevId", aclrtGetLogicDevIdByUserDevId(0, nullptr));
  CHECK(aclrtDeviceGetBareTgid(&number) == 0);
  CHECK(number == getpid());
  CHECK(uuid(0) == uuid(0));
  CHECK(uuid(0) != uuid(1));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtDeviceGetUuid", aclrtDeviceGetUuid(0, nullptr));
}

TEST_CASE("how a device is") {
  const Runtime runtime;
  aclrtUtilizationInfo use = {};
  CHECK(aclrtGetDeviceUtilizationRate(1, &use) == 0);
  CHECK(use.cubeUtilization >= -1);
  CHECK(use.cubeUtilization <= 100);
  CHECK(use.vectorUtilization == use.cubeUtilization);
  CHECK(use.memoryUtilization == -1);
  int local = 0;
  use.utilizationExtend = reinterpret_cast<aclrtUtilizationExtendInfo*>(&local);
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtGetDeviceUtilizationRate", aclrtGetDeviceUtilizationRate(0, &use));
  aclrtDeviceStatus status = ACL_RT_DEVICE_STATUS_ABNORMAL;
  CHECK(aclrtQueryDeviceStatus(0, &status) == 0);
  CHECK(status == ACL_RT_DEVICE_STATUS_NORMAL);

  uint32_t flags = 9;
  int32_t active = -1;
  CHECK(aclrtGetPrimaryCtxState(1, &flags, &active) == 0);
  CHECK(flags == 0);
  CHECK(active == 0);
  CHECK(aclrtSetDevice(1) == 0);
  CHECK(aclrtGetPrimaryCtxState(1, nullptr, &active) == 0);
  CHECK(active == 1);
  CHECK(aclrtResetDevice(1) == 0);
  CHECK(aclrtGetPrimaryCtxState(1, nullptr, &active) == 0);
  CHECK(active == 0);
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtGetPrimaryCtxState", aclrtGetPrimaryCtxState(0, nullptr, nullptr));
  REFUSED(ACL_ERROR_INVALID_DEVICE, "aclrtGetPrimaryCtxState", aclrtGetPrimaryCtxState(2, &flags, &active));

  aclrtErrorInfo error = {};
  std::memset(&error, 0xFF, sizeof(error));
  CHECK(aclrtGetErrorVerbose(0, &error) == 0);
  CHECK(error.errorType == ACL_RT_NO_ERROR);
  CHECK(error.tryRepair == 0);
  CHECK(error.hasDetail == 0);
  CHECK(aclrtRepairError(0, &error) == 0);
  error.errorType = ACL_RT_ERROR_L2;
  REFUSED(ACL_ERROR_FEATURE_UNSUPPORTED, "aclrtRepairError", aclrtRepairError(0, &error));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtGetErrorVerbose", aclrtGetErrorVerbose(0, nullptr));

  aclrtFloatOverflowMode mode = ACL_RT_OVERFLOW_MODE_UNDEF;
  CHECK(aclrtSetDeviceSatMode(ACL_RT_OVERFLOW_MODE_INFNAN) == 0);
  REFUSED(ACL_ERROR_FEATURE_UNSUPPORTED, "aclrtSetDeviceSatMode",
          aclrtSetDeviceSatMode(ACL_RT_OVERFLOW_MODE_SATURATION));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtSetDeviceSatMode", aclrtSetDeviceSatMode(ACL_RT_OVERFLOW_MODE_UNDEF));
  CHECK(aclrtGetDeviceSatMode(&mode) == 0);
  CHECK(mode == ACL_RT_OVERFLOW_MODE_INFNAN);
}

TEST_CASE("limits of cores: the stream's, else the device's, else all") {
  const Runtime runtime;
  const auto cores = static_cast<uint32_t>(attribute(ACL_DEV_ATTR_CUBE_CORE_NUM));
  aclrtStream stream = nullptr;
  REQUIRE(aclrtCreateStream(&stream) == 0);
  constexpr auto kCube = ACL_RT_DEV_RES_CUBE_CORE, kVector = ACL_RT_DEV_RES_VECTOR_CORE;
  const auto device = [](int32_t number, aclrtDevResLimitType type) {
    uint32_t value = 0;
    CHECK(aclrtGetDeviceResLimit(number, type, &value) == 0);
    return value;
  };
  const auto here = [&] {
    uint32_t value = 0;
    CHECK(aclrtGetResInCurrentThread(kCube, &value) == 0);
    return value;
  };
  CHECK(device(0, kCube) == cores);
  CHECK(here() == cores);
  CHECK(aclrtSetStreamResLimit(stream, kCube, 1) == 0);
  CHECK(here() == cores);
  CHECK(aclrtUseStreamResInCurrentThread(stream) == 0);
  CHECK(here() == 1);
  std::thread([&] { CHECK(here() == cores); }).join();
  CHECK(aclrtResetStreamResLimit(stream) == 0);
  CHECK(aclrtSetDeviceResLimit(0, kCube, 1) == 0);
  uint32_t value = 0;
  CHECK(aclrtGetStreamResLimit(stream, kCube, &value) == 0);
  CHECK(value == 1);
  CHECK(here() == 1);
  CHECK(device(0, kVector) == cores);
  CHECK(device(1, kCube) == cores);
  CHECK(aclrtResetDeviceResLimit(0) == 0);
  CHECK(here() == cores);
  CHECK(aclrtUnuseStreamResInCurrentThread(stream) == 0);
  CHECK(aclrtSetStreamResLimit(stream, kCube, 1) == 0);
  CHECK(here() == cores);
  CHECK(aclrtUseStreamResInCurrentThread(stream) == 0);
  CHECK(aclrtDestroyStream(stream) == 0);
  CHECK(here() == cores);  // its limits are gone with it
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtSetDeviceResLimit", aclrtSetDeviceResLimit(0, kCube, 0));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtSetDeviceResLimit",
          aclrtSetDeviceResLimit(0, kCube, std::max(cores, 64u) + 1));
  CHECK(aclrtSetDeviceResLimit(0, kVector, 48) == 0);  // as a program for an Ascend does
  CHECK(device(0, kVector) == 48);
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtGetDeviceResLimit",
          aclrtGetDeviceResLimit(0, static_cast<aclrtDevResLimitType>(2), &value));
  REFUSED(ACL_ERROR_INVALID_DEVICE, "aclrtSetDeviceResLimit", aclrtSetDeviceResLimit(2, kCube, 1));
  REFUSED(ACL_ERROR_INVALID_RESOURCE_HANDLE, "aclrtSetStreamResLimit", aclrtSetStreamResLimit(stream, kCube, 1));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtGetResInCurrentThread", aclrtGetResInCurrentThread(kCube, nullptr));
}

TEST_CASE("no operator is stopped for its time") {
  const Runtime runtime;
  uint64_t actual = 0;
  uint32_t milliseconds = 0;
  CHECK(aclrtSetOpExecuteTimeOut(1) == 0);
  CHECK(aclrtSetOpExecuteTimeOutWithMs(1) == 0);
  CHECK(aclrtSetOpExecuteTimeOutV2(1, &actual) == 0);
  CHECK(actual == UINT64_MAX);
  CHECK(aclrtGetOpExecuteTimeout(&milliseconds) == 0);
  CHECK(milliseconds == UINT32_MAX);
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtSetOpExecuteTimeOutV2", aclrtSetOpExecuteTimeOutV2(1, nullptr));
}

TEST_CASE("versions, without aclInit") {
  char text[ACL_PKG_VERSION_MAX_SIZE] = {};
  char runtime[] = "runtime", driver[] = "driver", unknown[] = "unknown";
  int32_t number = 0;
  CHECK(aclsysGetVersionStr(runtime, text) == 0);
  CHECK(text == std::string("9.1.0"));
  CHECK(aclsysGetVersionNum(runtime, &number) == 0);
  CHECK(number == 90100000);
  CHECK(aclsysGetVersionStr(driver, text) == 0);
  CHECK(text == std::string("26.1.0"));
  REFUSED(ACL_ERROR_INVALID_FILE, "aclsysGetVersionStr", aclsysGetVersionStr(unknown, text));
  REFUSED(ACL_ERROR_INVALID_FILE, "aclsysGetVersionNum", aclsysGetVersionNum(unknown, &number));
  aclCANNPackageVersion version;
  std::memset(&version, 0xFF, sizeof(version));
  CHECK(aclsysGetCANNVersion(ACL_PKG_NAME_CANN, &version) == 0);
  CHECK(version.version == std::string("9.1.0"));
  CHECK(version.majorVersion == std::string("9"));
  CHECK(version.minorVersion == std::string("1"));
  CHECK(version.releaseVersion == std::string("0"));
  CHECK(version.patchVersion == std::string());
  CHECK(aclsysGetCANNVersion(ACL_PKG_NAME_DRIVER, &version) == 0);
  CHECK(version.version == std::string("26.1.0"));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclsysGetCANNVersion",
          aclsysGetCANNVersion(static_cast<aclCANNPackageName>(8), &version));
  int32_t major = 0, minor = 0, patch = 0;
  CHECK(aclrtGetVersion(&major, &minor, &patch) == 0);
  CHECK(major == 1);
}

TEST_CASE("attributes of CANN, and options of its compiler") {
  char text[16] = {};
  {
    const Runtime runtime;
    int32_t value = -1;
    CHECK(aclGetCannAttribute(ACL_CANN_ATTR_INF_NAN, &value) == 0);
    CHECK(value == 1);
    CHECK(aclGetCannAttribute(ACL_CANN_ATTR_JIT_COMPILE, &value) == 0);
    CHECK(value == 0);
    const aclCannAttr* list = nullptr;
    size_t count = 0;
    CHECK(aclGetCannAttributeList(&list, &count) == 0);
    REQUIRE(count == 2);
    CHECK(list[0] == ACL_CANN_ATTR_INF_NAN);
    CHECK(list[1] == ACL_CANN_ATTR_BF16);
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclGetCannAttribute", aclGetCannAttribute(ACL_CANN_ATTR_UNDEFINED, &value));

    REQUIRE(aclGetCompileoptSize(ACL_OP_JIT_COMPILE) == 8);
    CHECK(aclGetCompileopt(ACL_OP_JIT_COMPILE, text, 8) == 0);
    CHECK(text == std::string("disable"));
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclGetCompileopt", aclGetCompileopt(ACL_OP_JIT_COMPILE, text, 7));
    CHECK(aclSetCompileopt(ACL_OP_JIT_COMPILE, "enable") == 0);
    CHECK(aclGetCompileopt(ACL_OP_JIT_COMPILE, text, sizeof(text)) == 0);
    CHECK(text == std::string("enable"));
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclSetCompileopt", aclSetCompileopt(ACL_OP_JIT_COMPILE, "perhaps"));
    CHECK(aclGetCompileoptSize(ACL_PRECISION_MODE) == 0);
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclGetCompileopt", aclGetCompileopt(ACL_PRECISION_MODE, text, sizeof(text)));
    CHECK(aclSetCompileopt(ACL_PRECISION_MODE, "must_keep") == 0);
    CHECK(aclGetCompileopt(ACL_PRECISION_MODE, text, sizeof(text)) == 0);
    CHECK(text == std::string("must_keep"));
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclSetCompileopt", aclSetCompileopt(static_cast<aclCompileOpt>(17), "x"));
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclSetCompileopt", aclSetCompileopt(ACL_DEBUG_DIR, nullptr));
  }
  const Runtime again;  // with nothing left from before aclFinalize
  CHECK(aclGetCompileopt(ACL_OP_JIT_COMPILE, text, sizeof(text)) == 0);
  CHECK(text == std::string("disable"));
}
