// Every misuse that C allows ends in a status and a sentence, and has no other effect.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "aclnnop/aclnn_group_norm_swish.h"
#include "aclnnop/aclnn_group_norm_swish_grad.h"
#include "aclnnop/aclnn_layer_norm_backward.h"
#include "aclnnop/aclnn_nsa_compress.h"
#include "aclnnop/aclnn_nsa_compress_grad.h"
#include "aclnnop/aclnn_rms_norm.h"
#include "aclnnop/aclnn_scaled_masked_softmax.h"
#include "capi_runtime.h"

namespace {

char host[256];
int64_t four[] = {4};

aclTensor* make_tensor(void* data = host) {
  return aclCreateTensor(four, 1, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, four, 1, data);
}

struct Named {
  const char* name;
  std::function<int()> call;
};

// Every function that needs aclInit and returns a status.
std::vector<Named> runtime_calls(aclTensor* tensor, aclOpExecutor* executor) {
  static void* pointer;
  static int64_t value;
  static size_t bytes, all;
  static float milliseconds;
  static aclrtRunMode mode;
  static aclrtStreamStatus status;
  static aclrtEventRecordedStatus recorded;
  static aclrtEventStatus older;
  static uint64_t timestamp;
  static aclrtPtrAttributes attributes;
  static aclrtPhysicalMemProp properties;
  static aclrtMemcpyBatchAttr attr;
  static aclrtMemUsageInfo usage;
  static aclrtMemUceInfo uce;
  static int32_t number;
  static uint64_t length;
  static int foreign;
  void* const handle = &foreign;
#define CALL(name, ...) {#name, [=] { return name(__VA_ARGS__); }}
  return {
      CALL(aclrtResetDevice, 0),
      CALL(aclrtResetDeviceForce, 0),
      CALL(aclrtGetRunMode, &mode),
      CALL(aclrtSynchronizeDevice),
      CALL(aclrtSynchronizeDeviceWithTimeout, 1),
      CALL(aclrtCreateContext, &pointer, 0),
      CALL(aclrtDestroyContext, handle),
      CALL(aclrtSetCurrentContext, handle),
      CALL(aclrtGetCurrentContext, &pointer),
      CALL(aclrtCtxGetSysParamOpt, ACL_OPT_DETERMINISTIC, &value),
      CALL(aclrtCtxSetSysParamOpt, ACL_OPT_DETERMINISTIC, 1),
      CALL(aclrtGetSysParamOpt, ACL_OPT_DETERMINISTIC, &value),
      CALL(aclrtSetSysParamOpt, ACL_OPT_DETERMINISTIC, 1),
      CALL(aclrtGetMemInfo, ACL_HBM_MEM, &bytes, &all),
      CALL(aclrtMalloc, &pointer, 64, ACL_MEM_MALLOC_HUGE_FIRST),
      CALL(aclrtMallocAlign32, &pointer, 64, ACL_MEM_MALLOC_HUGE_FIRST),
      CALL(aclrtMallocCached, &pointer, 64, ACL_MEM_MALLOC_HUGE_FIRST),
      CALL(aclrtFree, handle),
      CALL(aclrtMallocHost, &pointer, 64),
      CALL(aclrtFreeHost, handle),
      CALL(aclrtMallocHostWithCfg, &pointer, 64, nullptr),
      CALL(aclrtHostRegister, host, 64, ACL_HOST_REGISTER_MAPPED, &pointer),
      CALL(aclrtHostRegisterV2, host, 64, ACL_HOST_REG_MAPPED),
      CALL(aclrtHostUnregister, host),
      CALL(aclrtHostGetDevicePointer, host, &pointer, 0),
      CALL(aclrtPointerGetAttributes, host, &attributes),
      CALL(aclrtReserveMemAddress, &pointer, 64, 0, nullptr, 0),
      CALL(aclrtReleaseMemAddress, host),
      CALL(aclrtMallocPhysical, &pointer, 64, &properties, 0),
      CALL(aclrtFreePhysical, handle),
      CALL(aclrtMapMem, host, 64, 0, handle, 0),
      CALL(aclrtUnmapMem, host),
      CALL(aclrtMemGetAllocationGranularity, &properties, ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM, &bytes),
      CALL(aclrtMemExportToShareableHandle, handle, ACL_MEM_HANDLE_TYPE_NONE, 0, &length),
      CALL(aclrtMemSetPidToShareableHandle, 1, &number, 1),
      CALL(aclrtMemImportFromShareableHandle, 1, 0, &pointer),
      CALL(aclrtIpcMemGetExportKey, host, 64, host, 65, 0),
      CALL(aclrtIpcMemSetImportPid, host, &number, 1),
      CALL(aclrtIpcMemImportByKey, &pointer, host, 0),
      CALL(aclrtIpcMemClose, host),
      CALL(aclrtMemcpyAsyncWithCondition, host, 4, host + 8, 4, ACL_MEMCPY_HOST_TO_DEVICE, nullptr),
      CALL(aclrtMemcpyBatch, &pointer, &bytes, &pointer, &bytes, 1, &attr, &bytes, 1, &all),
      CALL(aclrtMemcpyBatchAsync, &pointer, &bytes, &pointer, &bytes, 1, &attr, &bytes, 1, &all, nullptr),
      CALL(aclrtCmoAsync, host, 4, ACL_RT_CMO_TYPE_PREFETCH, nullptr),
      CALL(aclrtGetMemUsageInfo, 0, &usage, 1, &bytes),
      CALL(aclrtGetMemUceInfo, 0, &uce, 1, &bytes),
      CALL(aclrtMemUceRepair, 0, &uce, 1),
      CALL(aclrtMemset, host, 4, 0, 4),
      CALL(aclrtMemsetAsync, host, 4, 0, 4, nullptr),
      CALL(aclrtMemcpy, host, 4, host + 8, 4, ACL_MEMCPY_HOST_TO_DEVICE),
      CALL(aclrtMemcpyAsync, host, 4, host + 8, 4, ACL_MEMCPY_HOST_TO_DEVICE, nullptr),
      CALL(aclrtMemcpy2d, host, 8, host + 64, 8, 4, 2, ACL_MEMCPY_HOST_TO_DEVICE),
      CALL(aclrtMemcpy2dAsync, host, 8, host + 64, 8, 4, 2, ACL_MEMCPY_HOST_TO_DEVICE, nullptr),
      CALL(aclrtCreateStream, &pointer),
      CALL(aclrtCreateStreamWithConfig, &pointer, 0, 0),
      CALL(aclrtDestroyStream, handle),
      CALL(aclrtDestroyStreamForce, handle),
      CALL(aclrtSynchronizeStream, nullptr),
      CALL(aclrtSynchronizeStreamWithTimeout, nullptr, 1),
      CALL(aclrtStreamQuery, nullptr, &status),
      CALL(aclrtStreamWaitEvent, nullptr, handle),
      CALL(aclrtCreateEvent, &pointer),
      CALL(aclrtCreateEventWithFlag, &pointer, ACL_EVENT_SYNC),
      CALL(aclrtCreateEventExWithFlag, &pointer, ACL_EVENT_SYNC),
      CALL(aclrtDestroyEvent, handle),
      CALL(aclrtRecordEvent, handle, nullptr),
      CALL(aclrtResetEvent, handle, nullptr),
      CALL(aclrtQueryEventStatus, handle, &recorded),
      CALL(aclrtQueryEvent, handle, &older),
      CALL(aclrtSynchronizeEvent, handle),
      CALL(aclrtSynchronizeEventWithTimeout, handle, 1),
      CALL(aclrtEventElapsedTime, &milliseconds, handle, handle),
      CALL(aclrtEventGetTimestamp, handle, &timestamp),
      CALL(aclrtQueryEventWaitStatus, handle, nullptr),
      CALL(aclrtIpcGetEventHandle, handle, nullptr),
      CALL(aclrtStreamGetId, nullptr, nullptr),
      CALL(aclrtStreamGetPriority, nullptr, nullptr),
      CALL(aclrtStreamGetFlags, nullptr, nullptr),
      CALL(aclrtSetStreamFailureMode, nullptr, ACL_STOP_ON_FAILURE),
      CALL(aclrtSetStreamOverflowSwitch, nullptr, 1),
      CALL(aclrtGetStreamOverflowSwitch, nullptr, nullptr),
      CALL(aclrtSetStreamAttribute, nullptr, ACL_STREAM_ATTR_PRIORITY, nullptr),
      CALL(aclrtGetStreamAttribute, nullptr, ACL_STREAM_ATTR_PRIORITY, nullptr),
      CALL(
          aclrtLaunchHostFunc, nullptr, [](void*) {}, nullptr),
      CALL(
          aclrtLaunchCallback, [](void*) {}, nullptr, ACL_CALLBACK_BLOCK, nullptr),
      CALL(aclrtSubscribeReport, 1, nullptr),
      CALL(aclrtUnSubscribeReport, 1, nullptr),
      CALL(aclrtProcessReport, 1),
      CALL(aclrtValueWrite, host, 1, 0, nullptr),
      CALL(aclrtValueWait, host, 1, 0, nullptr),
      CALL(aclmdlRICaptureGetInfo, nullptr, nullptr, &pointer),
      CALL(aclmdlRICaptureThreadExchangeMode, nullptr),
      CALL(aclrtDeviceCanAccessPeer, nullptr, 0, 0),
      CALL(aclrtDeviceEnablePeerAccess, 0, 0),
      CALL(aclrtDeviceDisablePeerAccess, 0),
      CALL(aclrtDevicePeerAccessStatus, 0, 0, nullptr),
      CALL(aclrtDeviceTaskAbort, 0, 0),
      CALL(aclrtGetDeviceInfo, 0, ACL_DEV_ATTR_IS_VIRTUAL, &value),
      CALL(aclGetDeviceCapability, 0, ACL_DEVICE_INFO_L2_SIZE, &value),
      CALL(aclrtGetDeviceUtilizationRate, 0, nullptr),
      CALL(aclrtDeviceGetUuid, 0, nullptr),
      CALL(aclrtDeviceGetBareTgid, nullptr),
      CALL(aclrtGetLogicDevIdByUserDevId, 0, nullptr),
      CALL(aclrtGetPrimaryCtxState, 0, nullptr, nullptr),
      CALL(aclrtGetErrorVerbose, 0, nullptr),
      CALL(aclrtRepairError, 0, nullptr),
      CALL(aclrtSetDeviceSatMode, ACL_RT_OVERFLOW_MODE_INFNAN),
      CALL(aclrtGetDeviceResLimit, 0, ACL_RT_DEV_RES_CUBE_CORE, nullptr),
      CALL(aclrtSetDeviceResLimit, 0, ACL_RT_DEV_RES_CUBE_CORE, 1),
      CALL(aclrtResetDeviceResLimit, 0),
      CALL(aclrtGetStreamResLimit, nullptr, ACL_RT_DEV_RES_CUBE_CORE, nullptr),
      CALL(aclrtSetStreamResLimit, nullptr, ACL_RT_DEV_RES_CUBE_CORE, 1),
      CALL(aclrtResetStreamResLimit, nullptr),
      CALL(aclrtUseStreamResInCurrentThread, nullptr),
      CALL(aclrtUnuseStreamResInCurrentThread, nullptr),
      CALL(aclrtGetResInCurrentThread, ACL_RT_DEV_RES_CUBE_CORE, nullptr),
      CALL(aclrtSetOpWaitTimeout, 1),
      CALL(aclrtSetOpExecuteTimeOut, 1),
      CALL(aclrtSetOpExecuteTimeOutV2, 1, nullptr),
      CALL(aclUpdateDataBuffer, nullptr, host, 4),
      CALL(aclInitTensor, tensor, four, 1, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, four, 1, host),
      CALL(aclSetRawTensorAddr, tensor, host),
      CALL(aclSetAclOpExecutorRepeatable, executor),
      CALL(aclDestroyAclOpExecutor, executor),
      CALL(aclSetInputTensorAddr, executor, 0, tensor, host),
      CALL(aclSetOutputTensorAddr, executor, 0, tensor, host),
      CALL(aclSetTensorAddr, executor, 0, tensor, host),
  };
#undef CALL
}

// A kind of object: how to make one, to destroy it and to use it.
struct Kind {
  const char* name;
  std::function<void*()> make;
  std::function<int(void*)> destroy;
  int stale;
  std::vector<std::pair<const char*, std::function<int(void*)>>> uses;
};

std::vector<Kind> kinds(Problem& problem) {
  static int64_t value, *dims;
  static uint64_t length;
  static float milliseconds;
  static aclFormat format;
  static aclDataType dtype;
  static void* pointer;
  static aclrtStreamStatus status;
  static aclrtEventRecordedStatus recorded;
  static aclrtEventStatus older;
  constexpr int kStale = ACL_ERROR_INVALID_RESOURCE_HANDLE, kInvalid = ACLNN_ERR_PARAM_INVALID;
  const auto tensor = [](void* handle) { return static_cast<aclTensor*>(handle); };
  const auto executor = [](void* handle) { return static_cast<aclOpExecutor*>(handle); };
  aclTensor* const x = problem.x;
#define USE(name, ...) {#name, [=](void* h) -> int { return name(__VA_ARGS__); }}
  return {
      {"aclDestroyTensor",
       [] { return make_tensor(); },
       [=](void* h) { return aclDestroyTensor(tensor(h)); },
       kInvalid,
       {USE(aclGetViewShape, tensor(h), &dims, &length), USE(aclGetStorageShape, tensor(h), &dims, &length),
        USE(aclGetViewStrides, tensor(h), &dims, &length), USE(aclGetViewOffset, tensor(h), &value),
        USE(aclGetFormat, tensor(h), &format), USE(aclGetDataType, tensor(h), &dtype),
        USE(aclSetRawTensorAddr, tensor(h), host), USE(aclGetRawTensorAddr, tensor(h), &pointer),
        USE(aclInitTensor, tensor(h), four, 1, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, four, 1, host)}},
      {"aclDestroyScalar",
       [] { return aclCreateScalar(four, ACL_INT64); },
       [](void* h) { return aclDestroyScalar(static_cast<aclScalar*>(h)); },
       kInvalid,
       {}},
      {"aclDestroyIntArray",
       [] { return aclCreateIntArray(four, 1); },
       [](void* h) { return aclDestroyIntArray(static_cast<aclIntArray*>(h)); },
       kInvalid,
       {USE(aclGetIntArraySize, static_cast<aclIntArray*>(h), &length)}},
      {"aclDestroyFloatArray",
       [] { return aclCreateFloatArray(reinterpret_cast<float*>(host), 3); },
       [](void* h) { return aclDestroyFloatArray(static_cast<aclFloatArray*>(h)); },
       kInvalid,
       {USE(aclGetFloatArraySize, static_cast<aclFloatArray*>(h), &length)}},
      {"aclDestroyBoolArray",
       [] { return aclCreateBoolArray(nullptr, 0); },
       [](void* h) { return aclDestroyBoolArray(static_cast<aclBoolArray*>(h)); },
       kInvalid,
       {USE(aclGetBoolArraySize, static_cast<aclBoolArray*>(h), &length)}},
      {"aclDestroyTensorList",
       [] {
         const aclTensor* one = make_tensor();
         return aclCreateTensorList(&one, 1);
       },
       [](void* h) { return aclDestroyTensorList(static_cast<aclTensorList*>(h)); },
       kInvalid,
       {USE(aclGetTensorListSize, static_cast<aclTensorList*>(h), &length)}},
      {"aclDestroyScalarList",
       [] {
         const aclScalar* one = aclCreateScalar(four, ACL_INT64);
         return aclCreateScalarList(&one, 1);
       },
       [](void* h) { return aclDestroyScalarList(static_cast<aclScalarList*>(h)); },
       kInvalid,
       {USE(aclGetScalarListSize, static_cast<aclScalarList*>(h), &length)}},
      {"aclDestroyDataBuffer",
       [] { return aclCreateDataBuffer(host, sizeof(host)); },
       [](void* h) { return aclDestroyDataBuffer(static_cast<aclDataBuffer*>(h)); },
       kInvalid,
       {USE(aclUpdateDataBuffer, static_cast<aclDataBuffer*>(h), host, 4)}},
      {"aclDestroyTensorDesc",
       [] { return aclCreateTensorDesc(ACL_FLOAT, 1, four, ACL_FORMAT_ND); },
       [](void* h) {  // gives no status
         (void)aclrtGetLastError(ACL_RT_THREAD_LEVEL);
         aclDestroyTensorDesc(static_cast<aclTensorDesc*>(h));
         return aclrtGetLastError(ACL_RT_THREAD_LEVEL);
       },
       kInvalid,
       {USE(aclGetTensorDescDimV2, static_cast<aclTensorDesc*>(h), 0, &value)}},
      {"aclDestroyAclOpExecutor",
       [&problem]() -> void* {
         uint64_t size = 0;
         aclOpExecutor* made = nullptr;
         CHECK(problem.first(&size, &made) == 0);
         return made;
       },
       [=](void* h) { return aclDestroyAclOpExecutor(executor(h)); },
       kInvalid,
       {USE(aclSetAclOpExecutorRepeatable, executor(h)),
        USE(aclSetInputTensorAddr, executor(h), 0, x, host),
        USE(aclSetOutputTensorAddr, executor(h), 0, x, host),
        USE(aclSetTensorAddr, executor(h), 0, x, host),
        {"aclnnRmsNormGrad", [=](void* h) { return aclnnRmsNormGrad(host, sizeof(host), executor(h), nullptr); }}}},
      {"aclrtDestroyStream",
       []() -> void* {
         aclrtStream stream = nullptr;
         CHECK(aclrtCreateStream(&stream) == 0);
         return stream;
       },
       aclrtDestroyStream,
       kStale,
       {USE(aclrtDestroyStreamForce, h), USE(aclrtSynchronizeStream, h), USE(aclrtSynchronizeStreamWithTimeout, h, 1),
        USE(aclrtStreamQuery, h, &status), USE(aclrtMemsetAsync, host, 4, 0, 4, h),
        USE(aclrtMemcpyAsync, host, 4, host + 8, 4, ACL_MEMCPY_DEFAULT, h)}},
      {"aclrtDestroyEvent",
       []() -> void* {
         aclrtEvent event = nullptr;
         CHECK(aclrtCreateEvent(&event) == 0);
         return event;
       },
       aclrtDestroyEvent,
       kStale,
       {USE(aclrtRecordEvent, h, nullptr), USE(aclrtResetEvent, h, nullptr), USE(aclrtSynchronizeEvent, h),
        USE(aclrtQueryEventStatus, h, &recorded), USE(aclrtQueryEvent, h, &older),
        USE(aclrtStreamWaitEvent, nullptr, h), USE(aclrtSynchronizeEventWithTimeout, h, 1),
        USE(aclrtEventElapsedTime, &milliseconds, h, h), USE(aclrtEventGetTimestamp, h, &length)}},
      {"aclrtFreePhysical",
       []() -> void* {
         aclrtPhysicalMemProp prop{};
         prop.memAttr = ACL_MEM_NORMAL;
         prop.location.type = ACL_MEM_LOCATION_TYPE_DEVICE;
         aclrtDrvMemHandle made = nullptr;
         CHECK(aclrtMallocPhysical(&made, 65536, &prop, 0) == 0);
         return made;
       },
       [](void* h) { return h == nullptr ? 0 : aclrtFreePhysical(h); },  // null is refused here, as CANN does
       kStale,
       {USE(aclrtMapMem, host, 65536, 0, h, 0),
        USE(aclrtMemExportToShareableHandle, h, ACL_MEM_HANDLE_TYPE_NONE, 0, &length)}},
      {"aclrtDestroyContext",
       []() -> void* {
         aclrtContext context = nullptr;
         CHECK(aclrtCreateContext(&context, 0) == 0);
         return context;
       },
       aclrtDestroyContext,
       kStale,
       {USE(aclrtSetCurrentContext, h)}},
  };
#undef USE
}

}  // namespace

TEST_CASE("before aclInit and after aclFinalize") {
  Problem problem;
  std::vector<unsigned char> workspace(4096);
  for (const char* word : {"aclInit has not been called", "aclFinalize has been called"}) {
    // Tensors, arrays and the first phase read metadata alone.
    aclTensor* const tensor = make_tensor();
    aclIntArray* const array = aclCreateIntArray(four, 1);
    CHECK(tensor != nullptr);
    CHECK(descendSetProduct("host") == 0);
    uint64_t size = 0;
    aclOpExecutor* executor = nullptr;
    Problem now;
    REQUIRE(now.first(&size, &executor) == 0);
    for (const auto& [name, call] : runtime_calls(tensor, executor)) {
      REFUSED(ACL_ERROR_UNINITIALIZE, name, call());
      CHECK_MESSAGE(sentence().find(word) != std::string::npos, sentence());
    }
    CHECK(aclrtGetSocName() == std::string("Descend"));
    int64_t* dims = nullptr;
    uint64_t rank = 0;
    CHECK(aclGetViewShape(tensor, &dims, &rank) == 0);  // descriptions are read without, too
    CHECK(rank == 1);
    delete[] dims;
    CHECK(aclGetIntArraySize(array, &rank) == 0);
    REFUSED(ACLNN_ERR_RUNTIME_ERROR, "aclnnRmsNormGrad", aclnnRmsNormGrad(workspace.data(), size, executor, nullptr));
    CHECK_MESSAGE(sentence().find(word) != std::string::npos, sentence());
    if (word[3] == 'I') {
      REFUSED(ACL_ERROR_UNINITIALIZE, "aclFinalize", aclFinalize());
    } else {
      REFUSED(ACL_ERROR_REPEAT_FINALIZE, "aclFinalize", aclFinalize());
    }
    CHECK(aclDataTypeSize(ACL_BF16) == 2);
    CHECK(aclFloat16ToFloat(aclFloatToFloat16(1.5f)) == 1.5f);
    CHECK(aclDestroyIntArray(array) == 0);
    CHECK(aclDestroyTensor(tensor) == 0);
    CHECK(aclInit("a path that nobody reads") == 0);
    REFUSED(ACL_ERROR_REPEAT_INITIALIZE, "aclInit", aclInit(nullptr));
    CHECK(aclFinalize() == 0);
  }
}

TEST_CASE("destroying twice, using after destroying, and handles of another kind") {
  const Runtime runtime;
  Problem problem;
  const std::vector<Kind> all = kinds(problem);
  int local = 0;
  for (const Kind& kind : all) {
    CHECK(kind.destroy(nullptr) == 0);
    void* const handle = kind.make();
    REQUIRE(handle != nullptr);
    CHECK_MESSAGE(kind.destroy(handle) == 0, kind.name, " ", sentence());
    for (int again = 0; again < 2; ++again) REFUSED(kind.stale, kind.name, kind.destroy(handle));
    // Other objects have its slot now.
    std::vector<void*> others;
    for (int i = 0; i < 200; ++i) others.push_back(kind.make());
    CHECK(std::set<void*>(others.begin(), others.end()).size() == 200);
    REFUSED(kind.stale, kind.name, kind.destroy(handle));
    for (const auto& [name, use] : kind.uses) REFUSED(kind.stale, name, use(handle));
    for (void* other : others) CHECK(kind.destroy(other) == 0);

    std::vector<void*> foreign{&local, host, reinterpret_cast<void*>(1), reinterpret_cast<void*>(~uintptr_t{0})};
    for (const Kind& other : all) {
      if (&other != &kind) foreign.push_back(other.make());
    }
    for (void* wrong : foreign) {
      REFUSED(kind.stale, kind.name, kind.destroy(wrong));
      for (const auto& [name, use] : kind.uses) REFUSED(kind.stale, name, use(wrong));
    }
  }
  aclDataBuffer* const buffer = aclCreateDataBuffer(host, 7);
  CHECK(aclGetDataBufferAddr(buffer) == host);
  CHECK(aclGetDataBufferSizeV2(buffer) == 7);
  CHECK(aclDestroyDataBuffer(buffer) == 0);
  CHECK(aclGetDataBufferAddr(buffer) == nullptr);
  CHECK(sentence().find("aclGetDataBufferAddr: ") == 0);
  CHECK(aclGetDataBufferSizeV2(buffer) == 0);
  CHECK(sentence().find("aclGetDataBufferSizeV2: ") == 0);
}

TEST_CASE("dead and foreign handles in the first phase") {
  const Runtime runtime;
  Problem problem;
  const Kind tensors = kinds(problem).front();
  void* const dead = tensors.make();
  CHECK(tensors.destroy(dead) == 0);
  uint64_t size = 99;
  aclOpExecutor* executor = nullptr;
  for (void* wrong : {dead, static_cast<void*>(host), static_cast<void*>(aclCreateIntArray(four, 1))}) {
    REFUSED(ACLNN_ERR_PARAM_INVALID, "aclnnRmsNormGrad",
            aclnnRmsNormGradGetWorkspaceSize(problem.dy, static_cast<aclTensor*>(wrong), problem.rstd, problem.gamma,
                                             problem.dx, problem.dgamma, &size, &executor));
    CHECK(sentence().find("aclnnRmsNormGrad: x ") == 0);
  }
  REFUSED(ACLNN_ERR_PARAM_NULLPTR, "aclnnRmsNormGrad", problem.first(nullptr, &executor));
  REFUSED(ACLNN_ERR_PARAM_NULLPTR, "aclnnRmsNormGrad", problem.first(&size, nullptr));
  CHECK(size == 99);
  CHECK(executor == nullptr);
  CHECK_FALSE(problem.dx.finite());  // nothing was written
}

TEST_CASE("the second phase: executors and workspaces that will not do") {
  const Runtime runtime;
  Problem problem(300, 64);
  Launch launch(problem);
  REQUIRE(launch.size > 8);
  char* const workspace = launch.workspace.data();
  const auto second = [&](void* place, uint64_t size, aclrtStream stream = nullptr) {
    return aclnnRmsNormGrad(place, size, launch.executor, stream);
  };
  aclrtStream dead = nullptr;
  REQUIRE(aclrtCreateStream(&dead) == 0);
  REQUIRE(aclrtDestroyStream(dead) == 0);
  const char* const who = "aclnnRmsNormGrad";
  REFUSED(ACLNN_ERR_PARAM_NULLPTR, who, aclnnRmsNormGrad(workspace, launch.size, nullptr, nullptr));
  REFUSED(ACLNN_ERR_PARAM_NULLPTR, who, second(nullptr, launch.size));
  REFUSED(ACLNN_ERR_PARAM_NULLPTR, who, second(nullptr, 0));
  REFUSED(ACLNN_ERR_PARAM_INVALID, who, second(workspace, launch.size - 1));
  REFUSED(ACLNN_ERR_PARAM_INVALID, who, second(workspace, 0));
  REFUSED(ACLNN_ERR_PARAM_INVALID, "aclnnRmsNorm", aclnnRmsNorm(workspace, launch.size, launch.executor, nullptr));
  CHECK(sentence().find("aclnnRmsNormGrad") != std::string::npos);  // whose it is
  REFUSED(ACLNN_ERR_RUNTIME_ERROR, who, second(workspace, launch.size, dead));
  REFUSED(ACLNN_ERR_RUNTIME_ERROR, who, second(workspace, launch.size, host));
  // If several arguments are wrong, the stream is reported last.
  REFUSED(ACLNN_ERR_PARAM_NULLPTR, who, second(nullptr, launch.size, dead));
  REFUSED(ACLNN_ERR_PARAM_INVALID, who, second(workspace, launch.size - 1, dead));

  // A workspace shares nothing with the tensors.
  REQUIRE(problem.dx.bytes() > launch.size);
  for (Array* array : {&problem.dy, &problem.x, &problem.dx}) {
    REFUSED(ACLNN_ERR_PARAM_INVALID, who, second(array->data(), launch.size));
    CHECK(sentence().find("the workspace overlaps ") != std::string::npos);
    REFUSED(ACLNN_ERR_PARAM_INVALID, who, second(array->data() + array->bytes() - 16, launch.size));
  }

  // The size that the caller gives does not count if the workspace's allocation is smaller.
  void* small = nullptr;
  REQUIRE(aclrtMalloc(&small, launch.size + 16, ACL_MEM_MALLOC_HUGE_FIRST) == 0);
  REFUSED(ACLNN_ERR_PARAM_INVALID, who, second(static_cast<char*>(small) + 32, launch.size));
  CHECK(sentence().find(std::to_string(launch.size - 16)) != std::string::npos);
  CHECK_FALSE(problem.dx.finite());

  CHECK(second(static_cast<char*>(small) + 16, launch.size) == 0);  // none of this has used it up
  REFUSED(ACLNN_ERR_PARAM_INVALID, who, second(small, launch.size));
  CHECK(aclrtSynchronizeStream(nullptr) == 0);
  CHECK(problem.dx.finite());
  REFUSED(ACLNN_ERR_PARAM_INVALID, who, second(small, launch.size));
  CHECK(sentence().find("unless aclSetAclOpExecutorRepeatable makes it repeatable") != std::string::npos);
  REFUSED(ACLNN_ERR_PARAM_INVALID, "aclDestroyAclOpExecutor", aclDestroyAclOpExecutor(launch.executor));
  REFUSED(ACLNN_ERR_PARAM_INVALID, "aclSetAclOpExecutorRepeatable", aclSetAclOpExecutorRepeatable(launch.executor));
}

TEST_CASE("a workspace larger than can be is refused, its size not wrapped") {
  const Runtime runtime;
  const int64_t one[] = {1}, none[] = {0, 0};
  const bool some[] = {false, true, false};
  aclIntArray* const normalized = aclCreateIntArray(one, 1);
  aclBoolArray* const mask = aclCreateBoolArray(some, 3);
  aclFloat16 element = 0x3c00;
  float sum = 0;
  aclTensor* const out = aclCreateTensor(one, 1, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, one, 1, &sum);
  // Copies of mean and rstd in float and a sum in double: 8 times as many bytes as rows or, in the last case, 12 times.
  for (const int64_t rows : {(int64_t{1} << 58) + 1, int64_t{1} << 61, int64_t{1537228672809129302}}) {
    const int64_t dims[] = {rows, 1};
    const auto same = [&](uint64_t rank) {
      return aclCreateTensor(dims, rank, ACL_FLOAT16, none, 0, ACL_FORMAT_ND, one, 1, &element);
    };
    uint64_t size = 0;
    aclOpExecutor* executor = nullptr;
    REFUSED(ACLNN_ERR_PARAM_INVALID, "aclnnLayerNormBackward",
            aclnnLayerNormBackwardGetWorkspaceSize(same(2), same(2), normalized, same(1), same(1), nullptr, nullptr,
                                                   mask, nullptr, out, nullptr, &size, &executor));
    CHECK(sentence().find("2^58") != std::string::npos);
    CHECK(executor == nullptr);
  }
}

TEST_CASE("a workspace of several tensors that each can be is refused where it cannot") {
  const Runtime runtime;
  const int64_t dims[] = {int64_t{1} << 58, 1}, one[] = {1}, none[] = {0, 0};
  const bool some[] = {false, true, false};
  aclFloat16 element = 0x3c00;
  double weight = 1, sum = 0;
  const auto rows = [&](uint64_t rank) {
    return aclCreateTensor(dims, rank, ACL_FLOAT16, none, 0, ACL_FORMAT_ND, one, 1, &element);
  };
  const auto scalar = [&](double* at) {
    return aclCreateTensor(one, 1, ACL_DOUBLE, nullptr, 0, ACL_FORMAT_ND, one, 1, at);
  };
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  // In double, as the weight is: copies of four tensors, 2^61 bytes each.
  REFUSED(ACLNN_ERR_PARAM_INVALID, "aclnnLayerNormBackward",
          aclnnLayerNormBackwardGetWorkspaceSize(rows(2), rows(2), aclCreateIntArray(one, 1), rows(1), rows(1),
                                                 scalar(&weight), nullptr, aclCreateBoolArray(some, 3), nullptr,
                                                 scalar(&sum), nullptr, &size, &executor));
  CHECK(sentence().find("2^62") != std::string::npos);
  CHECK(executor == nullptr);
}

TEST_CASE("outputs whose elements overlap each other, or may") {
  const Runtime runtime;
  const char* const overlap = "so that its elements overlap each other";
  struct Case {
    std::vector<int64_t> shape, strides;
    const char* word;
  };
  for (const auto& [shape, strides, word] :
       {Case{{4999, 4999}, {5001, 5000}, nullptr}, Case{{5000, 5001}, {5001, 5000}, nullptr},
        Case{{5001, 5002}, {5001, 5000}, overlap}, Case{{3, 4}, {4, 3}, nullptr}, Case{{4, 5}, {4, 3}, overlap},
        Case{{70, 70, 70}, {1000003, 1010007, 1100011}, nullptr}, Case{{70, 70, 70}, {10007, 10009, 10037}, overlap},
        // They do not overlap, but finding that out would take long.
        Case{{16, 16, 16, 16, 16},
             {155166371789, 106101308501, 166620417634, 149291608580, 129670118931},
             "too long to tell"}}) {
    const uint64_t rank = shape.size();
    const int64_t storage[] = {int64_t{1} << 44}, one[] = {1};
    const std::vector<int64_t> none(rank, 0);
    aclTensor* const x = aclCreateTensor(shape.data(), rank, ACL_FLOAT, none.data(), 0, ACL_FORMAT_ND, one, 1, nullptr);
    aclTensor* const y =
        aclCreateTensor(shape.data(), rank, ACL_FLOAT, strides.data(), 0, ACL_FORMAT_ND, storage, 1, nullptr);
    uint64_t size = 0;
    aclOpExecutor* executor = nullptr;
    const auto first = [&] {
      return aclnnScaledMaskedSoftmaxGetWorkspaceSize(x, nullptr, 1, false, y, &size, &executor);
    };
    if (word == nullptr) {
      CHECK_MESSAGE(first() == 0, sentence());
    } else {
      REFUSED(ACLNN_ERR_PARAM_INVALID, "aclnnScaledMaskedSoftmax", first());
      CHECK_MESSAGE(sentence().find(word) != std::string::npos, sentence());
    }
  }
}

TEST_CASE("of a text no more is read than need be") {
  const Runtime runtime;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const pages = mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(pages != MAP_FAILED);
  char* const end = static_cast<char*>(pages) + page;
  REQUIRE(mprotect(end, page, PROT_NONE) == 0);
  const auto ending = [&](const char* text) {
    return static_cast<char*>(std::memcpy(end - std::strlen(text), text, std::strlen(text)));
  };
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;

  Array x({1, 2, 2}, ACL_FLOAT), y({1, 2, 2}, ACL_FLOAT), mean({1, 1}, ACL_FLOAT), rstd({1, 1}, ACL_FLOAT);
  Array gamma({2}, ACL_FLOAT), beta({2}, ACL_FLOAT), dgamma({2}, ACL_FLOAT), dbeta({2}, ACL_FLOAT);
  for (char* format : {ending("NCHW"), end, reinterpret_cast<char*>(1)}) {
    CHECK(aclnnGroupNormSwishGetWorkspaceSize(x, gamma, beta, 1, format, 1e-5, true, 1, y, mean, rstd, &size,
                                              &executor) == 0);
    CHECK(aclnnGroupNormSwishGradGetWorkspaceSize(x, mean, rstd, x, gamma, beta, 1, format, 1, true, true, y, dgamma,
                                                  dbeta, &size, &executor) == 0);
  }

  Array input({16, 1, 16}, ACL_FLOAT), weight({16, 1}, ACL_FLOAT), output({1, 1, 16}, ACL_FLOAT);
  Array input_grad({16, 1, 16}, ACL_FLOAT), weight_grad({16, 1}, ACL_FLOAT);
  const auto forward = [&](char* layout) {
    return aclnnNsaCompressGetWorkspaceSize(input, weight, nullptr, layout, 16, 16, 0, output, &size, &executor);
  };
  const auto backward = [&](char* layout) {
    return aclnnNsaCompressGradGetWorkspaceSize(output, input, weight, nullptr, 16, 16, 0, layout, input_grad,
                                                weight_grad, &size, &executor);
  };
  char taken[] = "TND", empty[] = "", shorter[] = "TN", longer[] = "TNDX";
  CHECK(forward(taken) == 0);
  CHECK(backward(taken) == 0);
  for (const auto& [wrong, shown] :
       {std::pair{ending("B"), "'B...'"}, std::pair{ending("TB"), "'TB...'"}, std::pair{empty, "''"},
        std::pair{shorter, "'TN'"}, std::pair{longer, "'TNDX...'"}}) {
    REFUSED(ACLNN_ERR_PARAM_INVALID, "aclnnNsaCompress", forward(wrong));
    CHECK_MESSAGE(sentence().find(std::string("layoutOptional is ") + shown) != std::string::npos, sentence());
    ending(wrong == end - 1 ? "B" : "TB");
    REFUSED(ACLNN_ERR_PARAM_INVALID, "aclnnNsaCompressGrad", backward(wrong));
  }
  CHECK(munmap(pages, 2 * page) == 0);
}

TEST_CASE("data that is not there, or larger than its allocation") {
  const Runtime runtime;
  Problem problem;
  const int64_t shape[] = {8, 64};
  const auto with_x = [&](aclTensor* x, uint64_t* size, aclOpExecutor** executor) {
    return aclnnRmsNormGradGetWorkspaceSize(problem.dy, x, problem.rstd, problem.gamma, problem.dx, problem.dgamma,
                                            size, executor);
  };
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  // Null passes the first phase alone.
  aclTensor* x = aclCreateTensor(shape, 2, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, shape, 2, nullptr);
  REQUIRE(with_x(x, &size, &executor) == 0);
  std::vector<char> workspace(size + 1);
  REFUSED(ACLNN_ERR_RUNTIME_ERROR, "aclnnRmsNormGrad", aclnnRmsNormGrad(workspace.data(), size, executor, nullptr));
  CHECK(sentence().find(" x ") != std::string::npos);

  void* memory = nullptr;
  const size_t room = 8 * 64 * 4;
  REQUIRE(aclrtMalloc(&memory, room, ACL_MEM_MALLOC_NORMAL_ONLY) == 0);
  REQUIRE(aclrtMemset(memory, room, 0, room) == 0);
  CHECK(aclSetRawTensorAddr(x, memory) == 0);
  CHECK(with_x(x, &size, &executor) == 0);
  CHECK(aclDestroyAclOpExecutor(executor) == 0);
  executor = nullptr;
  CHECK(aclSetRawTensorAddr(x, static_cast<char*>(memory) + 4) == 0);
  REFUSED(ACLNN_ERR_PARAM_INVALID, "aclnnRmsNormGrad", with_x(x, &size, &executor));
  CHECK(sentence().find(std::to_string(room)) != std::string::npos);
  CHECK(sentence().find(std::to_string(room - 4)) != std::string::npos);
  // The storage counts, not the view.
  const int64_t storage = 8 * 64 + 1;
  CHECK(aclInitTensor(x, shape, 2, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, &storage, 1, memory) == 0);
  REFUSED(ACLNN_ERR_PARAM_INVALID, "aclnnRmsNormGrad", with_x(x, &size, &executor));
  CHECK(executor == nullptr);

  // A repeatable executor's new address is judged at the next launch.
  Launch launch(problem);
  CHECK(aclSetAclOpExecutorRepeatable(launch.executor) == 0);
  CHECK(aclSetInputTensorAddr(launch.executor, 1, problem.x, static_cast<char*>(memory) + 64) == 0);
  REFUSED(ACLNN_ERR_PARAM_INVALID, "aclnnRmsNormGrad", launch(nullptr));
  CHECK(aclSetInputTensorAddr(launch.executor, 1, problem.x, nullptr) == 0);
  REFUSED(ACLNN_ERR_RUNTIME_ERROR, "aclnnRmsNormGrad", launch(nullptr));
  CHECK(aclSetInputTensorAddr(launch.executor, 1, problem.x, memory) == 0);
  CHECK(launch(nullptr) == 0);
  CHECK(aclrtSynchronizeStream(nullptr) == 0);
  CHECK(aclDestroyAclOpExecutor(launch.executor) == 0);
  CHECK(aclDestroyTensor(x) == 0);
}

// Under the sanitizers this shows whether anything is computed from such numbers.
TEST_CASE("the offset of a tensor without elements, and the shape of one that is ignored, mean nothing") {
  const Runtime runtime;
  Array windowed({0, 1, 1}, ACL_FLOAT), weight({2, 1}, ACL_FLOAT), weight_grad({2, 1}, ACL_FLOAT);
  const int64_t none[] = {0, 1, 1};
  for (const int64_t offset : {int64_t{3}, INT64_MAX, INT64_MIN}) {
    for (void* const data : {static_cast<void*>(nullptr), static_cast<void*>(host)}) {
      aclTensor* const input = aclCreateTensor(none, 3, ACL_FLOAT, nullptr, offset, ACL_FORMAT_ND, none, 3, data);
      CHECK(run(aclnnNsaCompressGradGetWorkspaceSize, aclnnNsaCompressGrad, nullptr, windowed, input, weight, nullptr,
                2, 1, 0, nullptr, input, weight_grad) == 0);
      CHECK(weight_grad.at(0) == 0);
      CHECK(aclDestroyTensor(input) == 0);
    }
  }

  Problem problem;
  Array mean({8}, ACL_FLOAT), dx({8, 64}, ACL_FLOAT);
  mean.normal(1);
  const int64_t huge[] = {INT64_MAX, INT64_MAX, 3}, normalized[] = {64};
  const bool parts[] = {true, false, false};
  aclTensor* const ignored = aclCreateTensor(huge, 3, ACL_FLOAT, huge, INT64_MAX, ACL_FORMAT_ND, huge, 3, host);
  aclIntArray* const row = aclCreateIntArray(normalized, 1);
  aclBoolArray* const mask = aclCreateBoolArray(parts, 3);
  CHECK(run(aclnnLayerNormBackwardGetWorkspaceSize, aclnnLayerNormBackward, nullptr, problem.dy, problem.x, row, mean,
            problem.rstd, problem.gamma, nullptr, mask, dx, ignored, ignored) == 0);
  CHECK(dx.finite());
  CHECK(aclDestroyBoolArray(mask) == 0);
  CHECK(aclDestroyIntArray(row) == 0);
  CHECK(aclDestroyTensor(ignored) == 0);
}

TEST_CASE("copies and fills beyond an allocation") {
  const Runtime runtime;
  void* memory = nullptr;
  REQUIRE(aclrtMalloc(&memory, 100, ACL_MEM_MALLOC_HUGE_FIRST) == 0);
  char* const begin = static_cast<char*>(memory);
  struct Case {
    void* to;
    size_t most;
    const void* from;
    size_t count;
  };
  for (const Case& c : {Case{memory, 99, host, 100}, Case{memory, 101, host, 101}, Case{begin + 99, 2, host, 2},
                        Case{host, 256, memory, 101}, Case{host, 256, begin + 50, 51}, Case{nullptr, 8, host, 8},
                        Case{memory, 8, nullptr, 8}, Case{memory, ~size_t{0}, host, ~size_t{0}}}) {
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMemcpy", aclrtMemcpy(c.to, c.most, c.from, c.count, ACL_MEMCPY_DEFAULT));
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMemcpyAsync",
            aclrtMemcpyAsync(c.to, c.most, c.from, c.count, ACL_MEMCPY_DEFAULT, nullptr));
  }
  for (const Case& c : {Case{memory, 99, nullptr, 100}, Case{memory, 101, nullptr, 101},
                        Case{begin + 99, 2, nullptr, 2}, Case{nullptr, 8, nullptr, 8}}) {
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMemset", aclrtMemset(c.to, c.most, 1, c.count));
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMemsetAsync", aclrtMemsetAsync(c.to, c.most, 1, c.count, nullptr));
  }
  for (const int kind : {-1, 8}) {
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMemcpy",
            aclrtMemcpy(memory, 8, host, 8, static_cast<aclrtMemcpyKind>(kind)));
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMemcpy2d",
            aclrtMemcpy2d(memory, 8, host, 8, 8, 1, static_cast<aclrtMemcpyKind>(kind)));
  }
  struct Rows {
    void* to;
    size_t dpitch;
    const void* from;
    size_t spitch, width, height;
  };
  for (const Rows& r :
       {Rows{memory, 10, host, 10, 11, 1}, Rows{memory, 10, host, 9, 10, 2}, Rows{memory, 9, host, 10, 10, 2},
        Rows{memory, 50, host, 4, 1, 4}, Rows{memory, 50, host, 51, 51, 1}, Rows{host, 60, begin + 50, 50, 1, 3},
        Rows{memory, ~size_t{0}, host, 8, 8, 3}, Rows{memory, 8, host, ~size_t{0} / 2, 8, 3},
        Rows{memory, ~size_t{0}, host, ~size_t{0}, ~size_t{0}, 2}, Rows{nullptr, 8, host, 8, 8, 1},
        Rows{memory, 8, nullptr, 8, 8, 1}}) {
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMemcpy2d",
            aclrtMemcpy2d(r.to, r.dpitch, r.from, r.spitch, r.width, r.height, ACL_MEMCPY_DEFAULT));
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMemcpy2dAsync",
            aclrtMemcpy2dAsync(r.to, r.dpitch, r.from, r.spitch, r.width, r.height, ACL_MEMCPY_DEFAULT, nullptr));
  }
  CHECK(aclrtMemset(memory, 100, 7, 100) == 0);
  CHECK(aclrtMemcpy(host, 256, begin + 50, 50, ACL_MEMCPY_DEVICE_TO_HOST) == 0);
  CHECK(host[49] == 7);
  void* pointer = host;
  for (const size_t size : {size_t{0}, ~size_t{0}, size_t{1} << 60}) {
    const int status = size == 0 ? ACL_ERROR_INVALID_PARAM : ACL_ERROR_BAD_ALLOC;
    REFUSED(status, "aclrtMalloc", aclrtMalloc(&pointer, size, ACL_MEM_MALLOC_HUGE_FIRST));
    REFUSED(status, "aclrtMallocHost", aclrtMallocHost(&pointer, size));
  }
  CHECK(pointer == host);
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMalloc", aclrtMalloc(nullptr, 8, ACL_MEM_MALLOC_HUGE_FIRST));
  for (void* wrong : {static_cast<void*>(nullptr), static_cast<void*>(host), static_cast<void*>(begin + 1)}) {
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtFree", aclrtFree(wrong));
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtFreeHost", aclrtFreeHost(wrong));
  }
  CHECK(aclrtFree(memory) == 0);
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtFree", aclrtFree(memory));
}

TEST_CASE("null results, devices that are none, lists without values") {
  const Runtime runtime;
  aclrtStream stream = nullptr;
  aclrtEvent event = nullptr;
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtCreateStream", aclrtCreateStream(nullptr));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtCreateStreamWithConfig", aclrtCreateStreamWithConfig(&stream, 0, 4));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtCreateEvent", aclrtCreateEvent(nullptr));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtCreateEventWithFlag", aclrtCreateEventWithFlag(&event, 0x40));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtCreateEventExWithFlag", aclrtCreateEventExWithFlag(&event, 0x41));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtSetSysParamOpt", aclrtSetSysParamOpt(static_cast<aclSysParamOpt>(3), 1));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtSetSysParamOpt", aclrtSetSysParamOpt(ACL_OPT_STRONG_CONSISTENCY, 2));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtGetDevice", aclrtGetDevice(nullptr));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtGetDeviceCount", aclrtGetDeviceCount(nullptr));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtGetRunMode", aclrtGetRunMode(nullptr));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtGetVersion", aclrtGetVersion(nullptr, nullptr, nullptr));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtGetMemInfo", aclrtGetMemInfo(ACL_HBM_MEM, nullptr, nullptr));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtStreamQuery", aclrtStreamQuery(nullptr, nullptr));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtSynchronizeStreamWithTimeout", aclrtSynchronizeStreamWithTimeout(nullptr, -2));
  for (const int32_t device : {1, -1, 1 << 30}) {
    REFUSED(ACL_ERROR_INVALID_DEVICE, "aclrtSetDevice", aclrtSetDevice(device));
    REFUSED(ACL_ERROR_INVALID_DEVICE, "aclrtResetDevice", aclrtResetDevice(device));
    REFUSED(ACL_ERROR_INVALID_DEVICE, "aclrtResetDeviceForce", aclrtResetDeviceForce(device));
    REFUSED(ACL_ERROR_INVALID_DEVICE, "aclrtCreateContext", aclrtCreateContext(&stream, device));
  }
  CHECK(stream == nullptr);
  CHECK(event == nullptr);
  CHECK(aclCreateIntArray(nullptr, 3) == nullptr);
  CHECK(sentence().find("aclCreateIntArray: ") == 0);
  CHECK(aclCreateTensorList(nullptr, 3) == nullptr);
  CHECK(aclCreateScalar(nullptr, ACL_FLOAT) == nullptr);
  CHECK(sentence().find("aclCreateScalar: ") == 0);
  CHECK(aclCreateTensor(nullptr, 2, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, four, 1, host) == nullptr);
  CHECK(sentence().find("aclCreateTensor: ") == 0);
  // A tensor may have absurd numbers, which the first phase checks; only too many dimensions are refused at once.
  CHECK(aclCreateTensor(four, uint64_t{1} << 62, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, four, 1, host) == nullptr);
  CHECK(aclCreateIntArray(four, uint64_t{1} << 62) == nullptr);
  std::vector<int64_t> many(3000, INT64_MAX);
  aclTensor* const odd = aclCreateTensor(many.data(), many.size(), static_cast<aclDataType>(77), many.data(), INT64_MIN,
                                         static_cast<aclFormat>(-9), many.data(), many.size(), host);
  REQUIRE(odd != nullptr);
  Problem problem;
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  const auto first = [&] {
    return aclnnRmsNormGradGetWorkspaceSize(odd, problem.x, problem.rstd, problem.gamma, problem.dx, problem.dgamma,
                                            &size, &executor);
  };
  REFUSED(ACLNN_ERR_PARAM_INVALID, "aclnnRmsNormGrad", first());
  CHECK(aclInitTensor(odd, many.data(), many.size(), ACL_FLOAT, many.data(), INT64_MAX, ACL_FORMAT_ND, many.data(),
                      many.size(), host) == 0);
  REFUSED(ACLNN_ERR_PARAM_INVALID, "aclnnRmsNormGrad", first());
  CHECK(aclDestroyTensor(odd) == 0);
}

TEST_CASE("sentences on dtypes, formats and storages") {
  const Runtime runtime;
  Problem problem;
  const int64_t dims[] = {8, 64}, one[] = {1}, one_less[] = {8 * 64 - 1};
  const auto said_of_dy = [&](aclDataType dtype, aclFormat format, uint64_t storage_rank, const int64_t* storage) {
    uint64_t size = 0;
    aclOpExecutor* executor = nullptr;
    aclTensor* const dy = aclCreateTensor(dims, 2, dtype, nullptr, 0, format, storage, storage_rank, problem.dy.data());
    CHECK(aclnnRmsNormGradGetWorkspaceSize(dy, problem.x, problem.rstd, problem.gamma, problem.dx, problem.dgamma,
                                           &size, &executor) == ACLNN_ERR_PARAM_INVALID);
    CHECK(aclDestroyTensor(dy) == 0);
    return sentence();
  };
  CHECK(said_of_dy(static_cast<aclDataType>(99), ACL_FORMAT_ND, 2, dims).find(": dy has dtype 99, but must be ") !=
        std::string::npos);
  CHECK(said_of_dy(ACL_FLOAT, static_cast<aclFormat>(77), 2, dims).find(": dy has format 77, but must have ") !=
        std::string::npos);
  CHECK(said_of_dy(ACL_FLOAT, ACL_FORMAT_ND, 1, one).find("outside its storage of 1 element.") != std::string::npos);
  CHECK(said_of_dy(ACL_FLOAT, ACL_FORMAT_ND, 1, one_less).find("outside its storage of 511 elements.") !=
        std::string::npos);
  CHECK(descendSetProduct("atlas-a3") == 0);
  CHECK(
      said_of_dy(ACL_FLOAT16, ACL_FORMAT_ND, 2, dims) ==
      "aclnnRmsNormGrad: the dtypes dy FLOAT16, x FLOAT, rstd FLOAT, gamma FLOAT, dxOut FLOAT, dgammaOut FLOAT do not "
      "go together on atlas-a3; with dy FLOAT they would.");
}
