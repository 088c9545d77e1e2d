// Collectives, the profiler and graph capture: programs bind and call them, and the answer is always that there are
// none. Their headers are no part of this library.
#include <dlfcn.h>

#include "runtime.h"

namespace fuzz {
namespace {

constexpr int kStale = 200005, kInvalid = 100000;

// Calls a function by its name, with arguments that nothing may be read from.
int call(Bytes& bytes, const char* name) {
  using Function = int32_t (*)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);
  void* const found = dlsym(RTLD_DEFAULT, name);
  if (found == nullptr) fault(std::string(name) + " is missing");
  const auto next = [&bytes] { return bytes.hostile(); };
  const int64_t a = next(), b = next(), c = next(), d = next();
  return reinterpret_cast<Function>(found)(a, b, c, d, a, b, c, d);
}

template <class Function>
Function find(const char* name) {
  void* const found = dlsym(RTLD_DEFAULT, name);
  if (found == nullptr) fault(std::string(name) + " is missing");
  return reinterpret_cast<Function>(found);
}

}  // namespace

void Runtime::collectives() {
  constexpr int kNone = 5, kParameter = 1, kPointer = 2;  // HCCL's codes
  const auto name = bytes_.pick<const char*>({"HcclAllReduce",
                                              "HcclAllGather",
                                              "HcclAllGatherV",
                                              "HcclAlltoAll",
                                              "HcclAlltoAllV",
                                              "HcclBatchSendRecv",
                                              "HcclBroadcast",
                                              "HcclCommDestroy",
                                              "HcclCommInitAll",
                                              "HcclCommInitRootInfo",
                                              "HcclCommRegister",
                                              "HcclCreateSubCommConfig",
                                              "HcclGetCommAsyncError",
                                              "HcclGetCommName",
                                              "HcclGetRootInfo",
                                              "HcclRecv",
                                              "HcclReduce",
                                              "HcclReduceScatter",
                                              "HcclReduceScatterV",
                                              "HcclScatter",
                                              "HcclSend"});
  expect(name, call(bytes_, name), {kNone});
  static const auto set = find<int32_t (*)(int, int32_t)>("HcclSetConfig");
  static const auto get = find<int32_t (*)(int, int32_t*)>("HcclGetConfig");
  const auto config = bytes_.pick<int>({0, 0, 1, -1});
  const auto value = static_cast<int32_t>(bytes_.number());
  int32_t found = 0;
  expect("HcclSetConfig", set(config, value), {config == 0 ? 0 : kParameter});
  expect("HcclGetConfig", get(config, &found), {config == 0 ? 0 : kParameter});
  if (config == 0 && is_alone && found != value) fault("a setting of collectives has another value");
  expect("HcclGetConfig", get(0, nullptr), {kPointer});
}

void Runtime::profiling() {
  constexpr int kError = 5, kUninitialized = 6, kUnsupported = 200006;  // Msprof's codes, and CANN's
  const auto name = bytes_.pick<const char*>(
      {"aclprofInit", "aclprofStart", "aclprofStop", "aclprofFinalize", "aclprofMarkEx", "aclprofSetConfig",
       "aclprofWarmup", "aclprofDestroyConfig", "aclprofGetSupportedFeatures", "aclmdlRICaptureBegin",
       "aclmdlRICaptureEnd", "aclmdlRIExecuteAsync", "aclmdlRIDestroy", "aclmdlInitDump", "aclopStartDumpArgs"});
  expect(name, call(bytes_, name), {kUnsupported});
  static const auto report = find<int32_t (*)(uint32_t, const void*)>("MsprofReportApi");
  static const auto report_more = find<int32_t (*)(uint32_t, const void*, uint32_t)>("MsprofReportAdditionalInfo");
  static const auto hash = find<uint64_t (*)(const char*, size_t)>("MsprofGetHashId");
  static const auto keep = find<int32_t (*)(uint32_t, void*)>("MsprofRegisterCallback");
  const bool null = bytes_.below(2) != 0;
  const char text[8] = {1};
  const void* const data = null ? nullptr : text;
  const uint32_t number = bytes_.number();
  expect("MsprofReportApi", report(number, data), {null ? kError : kUninitialized});
  expect("MsprofReportAdditionalInfo", report_more(number, data, number), {null ? kError : kUninitialized});
  expect("MsprofRegisterCallback", keep(number, null ? nullptr : &calls_), {null ? kError : 0});
  const auto length = static_cast<size_t>(bytes_.below(sizeof(text) + 1));
  const bool nothing = null || length == 0;
  const uint64_t first = hash(null ? nullptr : text, length);
  if ((first == UINT64_MAX) != nothing || first != hash(null ? nullptr : text, length)) fault("a hash is another");
  capture();
}

void Runtime::capture() {
  thread_local aclmdlRICaptureMode mode = ACL_MODEL_RI_CAPTURE_MODE_GLOBAL;
  const auto given = static_cast<aclmdlRICaptureMode>(bytes_.pick<int>({0, 1, 2, 3, -1}));
  const bool fine = given <= ACL_MODEL_RI_CAPTURE_MODE_RELAXED;
  aclmdlRICaptureMode now = given;
  expect("aclmdlRICaptureThreadExchangeMode", aclmdlRICaptureThreadExchangeMode(&now), {fine ? 0 : kInvalid});
  if (now != (fine ? mode : given)) fault("the mode of captures was another");
  if (fine) mode = given;
  expect("aclmdlRICaptureThreadExchangeMode", aclmdlRICaptureThreadExchangeMode(nullptr), {kInvalid});
  const Object stream = pick_stream();
  auto status = ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE;
  const bool null = bytes_.one_in(4);
  const int code = null ? kInvalid : stream.alive ? 0 : kStale;
  expect("aclmdlRICaptureGetInfo", aclmdlRICaptureGetInfo(stream.handle, null ? nullptr : &status, nullptr), {code});
  if (code == 0 && status != ACL_MODEL_RI_CAPTURE_STATUS_NONE) fault("something is captured");
}

}  // namespace fuzz
