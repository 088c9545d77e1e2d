// Functions that cannot be served: a code, a sentence that names the function, never success.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "acl/acl_rt.h"

namespace {

std::string sentence() { return aclGetRecentErrMsg(); }

template <class Function>
Function find(const char* name) {
  CAPTURE(name);
  void* const found = dlsym(RTLD_DEFAULT, name);
  REQUIRE(found != nullptr);
  return reinterpret_cast<Function>(found);
}

}  // namespace

TEST_CASE("functions that cannot be served say so") {
  struct Family {
    int code;
    const char* word;
    std::vector<const char*> names;
  };
  const Family families[] = {
      {ACL_ERROR_FEATURE_UNSUPPORTED,
       "binaries",
       {"aclrtBinaryGetFunction", "aclrtBinaryLoadFromData", "aclrtGetFunctionAddr", "aclrtLaunchKernelWithHostArgs",
        "rtDevBinaryRegister", "rtFunctionRegister", "rtKernelLaunch"}},
      {ACL_ERROR_FEATURE_UNSUPPORTED, "synchronizes", {"aclrtGetHardwareSyncAddr", "rtGetC2cCtrlAddr"}},
      {ACL_ERROR_FEATURE_UNSUPPORTED,
       "captured",
       {"aclmdlRIAddCondTask", "aclmdlRICaptureBegin", "aclmdlRICaptureEnd", "aclmdlRICaptureTaskGrpBegin",
        "aclmdlRICaptureTaskGrpEnd", "aclmdlRICaptureTaskUpdateBegin", "aclmdlRICaptureTaskUpdateEnd",
        "aclmdlRICaptureToModelRIBegin", "aclmdlRICondHandleCreate", "aclmdlRICondHandleGetCondPtr",
        "aclmdlRIDebugJsonPrint", "aclmdlRIDebugPrint", "aclmdlRIDestroy", "aclmdlRIExecuteAsync", "aclmdlRIGetId"}},
      {ACL_ERROR_FEATURE_UNSUPPORTED,
       "profiler",
       {"aclprofDestroyConfig", "aclprofDestroyStepInfo", "aclprofFinalize", "aclprofGetStepTimestamp",
        "aclprofGetSupportedFeatures", "aclprofGetSupportedFeaturesV2", "aclprofInit", "aclprofMarkEx",
        "aclprofRegisterDeviceCallback", "aclprofSetConfig", "aclprofStart", "aclprofStop", "aclprofWarmup"}},
      {ACL_ERROR_FEATURE_UNSUPPORTED,
       "dumped",
       {"aclmdlFinalizeDump", "aclmdlInitDump", "aclmdlSetDump", "aclopStartDumpArgs", "aclopStopDumpArgs"}},
      {ACL_ERROR_FEATURE_UNSUPPORTED, "graphs", {"aclDestroyGraphDumpOpt", "aclGenGraphAndDumpForOp"}},
      {5,  // HCCL_E_NOT_SUPPORT
       "collectives",
       {"HcclAllGather",
        "HcclAllGatherV",
        "HcclAllReduce",
        "HcclAlltoAll",
        "HcclAlltoAllV",
        "HcclAlltoAllVC",
        "HcclBatchSendRecv",
        "HcclBroadcast",
        "HcclCommDestroy",
        "HcclCommInitAll",
        "HcclCommInitRootInfo",
        "HcclCommInitRootInfoConfig",
        "HcclCreateSubCommConfig",
        "HcclGetCommAsyncError",
        "HcclGetCommName",
        "HcclGetRootInfo",
        "HcclRecv",
        "HcclReduce",
        "HcclReduceScatter",
        "HcclReduceScatterV",
        "HcclScatter",
        "HcclSend"}},
  };
  // With or without aclInit, whatever they are given: nothing of it is read.
  char host[64] = {};
  void* const stray = reinterpret_cast<void*>(1);
  for (const Family& family : families) {
    for (const char* name : family.names) {
      CAPTURE(name);
      const auto call = find<int (*)(void*, void*, const char*, uint64_t, void*)>(name);
      CHECK(call(stray, nullptr, host, 3, stray) == family.code);
      CHECK_MESSAGE(sentence().find(std::string(name) + ": ") == 0, sentence());
      CHECK_MESSAGE(sentence().find(family.word) != std::string::npos, sentence());
      CHECK(aclrtGetLastError(ACL_RT_THREAD_LEVEL) == family.code);
    }
  }
  for (const char* name : {"aclprofCreateConfig", "aclprofCreateStepInfo", "aclCreateGraphDumpOpt"}) {
    CHECK(find<void* (*)(void*)>(name)(stray) == nullptr);
    CHECK_MESSAGE(sentence().find(std::string(name) + ": ") == 0, sentence());
  }
}

TEST_CASE("a profiler that is not there") {
  const auto callback = find<int (*)(uint32_t, void*)>("MsprofRegisterCallback");
  CHECK(callback(7, nullptr) == 5);  // MSPROF_ERROR
  CHECK(callback(7, reinterpret_cast<void*>(&sentence)) == 0);
  const char data[256] = {};
  for (const char* name : {"MsprofReportApi", "MsprofReportCompactInfo", "MsprofReportAdditionalInfo"}) {
    const auto tell = find<int (*)(uint32_t, const void*, uint32_t)>(name);
    CHECK(tell(0, data, sizeof(data)) == 6);  // MSPROF_ERROR_UNINITIALIZE
    CHECK_MESSAGE(sentence() == std::string(name) + ": there is no profiler of the device.", sentence());
    CHECK(tell(0, nullptr, 0) == 5);
  }
  const auto version = find<int (*)(int*)>("halGetAPIVersion");
  int number = 0;
  CHECK(version(&number) == 0);
  CHECK(number == 0x071905);
  CHECK(version(nullptr) == 3);  // DRV_ERROR_INVALID_VALUE
  int64_t frequency = 7;
  CHECK(find<int (*)(uint32_t, int, int, int64_t*)>("halGetDeviceInfo")(0, 0, 24, &frequency) == 0xfffe);
  CHECK(frequency == 7);
  const auto hash = find<uint64_t (*)(const char*, size_t)>("MsprofGetHashId");
  CHECK(hash("a", 1) == hash("abc", 1));
  CHECK(hash("a", 1) != hash("b", 1));
  CHECK(hash(nullptr, 1) == UINT64_MAX);
  CHECK(hash("a", 0) == UINT64_MAX);
  const auto now = find<uint64_t (*)()>("MsprofSysCycleTime");
  const uint64_t before = now();
  CHECK(now() >= before);
}

TEST_CASE("nothing is being captured") {
  aclmdlRICaptureStatus status = ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE;
  int local = 0;
  aclmdlRI model = &local;
  CHECK(aclmdlRICaptureGetInfo(nullptr, &status, &model) == ACL_ERROR_UNINITIALIZE);
  REQUIRE(aclInit(nullptr) == 0);
  REQUIRE(aclrtSetDevice(0) == 0);
  aclrtStream stream = nullptr;
  REQUIRE(aclrtCreateStream(&stream) == 0);
  for (aclrtStream asked : {stream, aclrtStream{nullptr}}) {
    status = ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE;
    model = &local;
    CHECK(aclmdlRICaptureGetInfo(asked, &status, &model) == 0);
    CHECK(status == ACL_MODEL_RI_CAPTURE_STATUS_NONE);
    CHECK(model == nullptr);
  }
  CHECK(aclmdlRICaptureGetInfo(stream, &status, nullptr) == 0);
  CHECK(aclmdlRICaptureGetInfo(stream, nullptr, &model) == 0);
  CHECK(aclmdlRICaptureGetInfo(stream, nullptr, nullptr) == ACL_ERROR_INVALID_PARAM);
  CHECK(aclmdlRICaptureGetInfo(&local, &status, &model) == ACL_ERROR_INVALID_RESOURCE_HANDLE);

  aclmdlRICaptureMode mode = ACL_MODEL_RI_CAPTURE_MODE_RELAXED;
  CHECK(aclmdlRICaptureThreadExchangeMode(&mode) == 0);
  CHECK(mode == ACL_MODEL_RI_CAPTURE_MODE_GLOBAL);
  CHECK(aclmdlRICaptureThreadExchangeMode(&mode) == 0);
  CHECK(mode == ACL_MODEL_RI_CAPTURE_MODE_RELAXED);
  mode = static_cast<aclmdlRICaptureMode>(3);
  CHECK(aclmdlRICaptureThreadExchangeMode(&mode) == ACL_ERROR_INVALID_PARAM);
  CHECK(aclmdlRICaptureThreadExchangeMode(nullptr) == ACL_ERROR_INVALID_PARAM);
  CHECK(aclFinalize() == 0);
}
