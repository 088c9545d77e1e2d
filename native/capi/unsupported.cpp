// Functions of CANN that this library cannot serve. Each returns CANN's code for that and a sentence. Arguments are not
// read. They exist so that programs that bind them when loaded, such as torch_npu, load and run until one is called.
#include "acl/acl_base.h"
#include "capi/state.h"

namespace {

using namespace descend;
using namespace descend::capi;

struct Feature {
  Code code;
  const char* sentence;
};

constexpr Feature kBinaries{kFeatureUnsupported,
                            "binaries of a device cannot be loaded or launched; operators run on the CPU."};
constexpr Feature kSyncAddress{kFeatureUnsupported, "no hardware here synchronizes by an address."};
constexpr Feature kCapture{kFeatureUnsupported, "the work on a stream cannot be captured as a graph."};
constexpr Feature kProfiling{kFeatureUnsupported, "there is no profiler of the device."};
constexpr Feature kDump{kFeatureUnsupported, "the inputs and outputs of operators cannot be dumped."};
constexpr Feature kGraphs{kFeatureUnsupported, "there is no compiler of graphs."};
// HCCL has a code of its own.
constexpr Feature kCollectives{Code{5}, "there are no collectives between devices."};

int32_t refuse(const char* function, const Feature& feature) noexcept {
  return report(function, feature.code, feature.sentence);
}

}  // namespace

// Declared without parameters. A C function may be called with arguments that it does not read: the caller removes
// them.
#define REFUSE(name, feature) \
  ACL_FUNC_VISIBILITY int32_t name() { return refuse(#name, feature); }

// The same for a function that returns an object.
#define REFUSE_OBJECT(name, feature) \
  ACL_FUNC_VISIBILITY void* name() { \
    (void)refuse(#name, feature);    \
    return nullptr;                  \
  }

extern "C" {

REFUSE(aclrtBinaryGetFunction, kBinaries)
REFUSE(aclrtBinaryLoadFromData, kBinaries)
REFUSE(aclrtGetFunctionAddr, kBinaries)
REFUSE(aclrtLaunchKernelWithHostArgs, kBinaries)
REFUSE(rtDevBinaryRegister, kBinaries)
REFUSE(rtFunctionRegister, kBinaries)
REFUSE(rtKernelLaunch, kBinaries)

REFUSE(aclrtGetHardwareSyncAddr, kSyncAddress)
REFUSE(rtGetC2cCtrlAddr, kSyncAddress)

REFUSE(aclmdlRIAddCondTask, kCapture)
REFUSE(aclmdlRICaptureBegin, kCapture)
REFUSE(aclmdlRICaptureEnd, kCapture)
REFUSE(aclmdlRICaptureTaskGrpBegin, kCapture)
REFUSE(aclmdlRICaptureTaskGrpEnd, kCapture)
REFUSE(aclmdlRICaptureTaskUpdateBegin, kCapture)
REFUSE(aclmdlRICaptureTaskUpdateEnd, kCapture)
REFUSE(aclmdlRICaptureToModelRIBegin, kCapture)
REFUSE(aclmdlRICondHandleCreate, kCapture)
REFUSE(aclmdlRICondHandleGetCondPtr, kCapture)
REFUSE(aclmdlRIDebugJsonPrint, kCapture)
REFUSE(aclmdlRIDebugPrint, kCapture)
REFUSE(aclmdlRIDestroy, kCapture)
REFUSE(aclmdlRIExecuteAsync, kCapture)
REFUSE(aclmdlRIGetId, kCapture)

REFUSE_OBJECT(aclprofCreateConfig, kProfiling)
REFUSE_OBJECT(aclprofCreateStepInfo, kProfiling)
REFUSE(aclprofDestroyConfig, kProfiling)
REFUSE(aclprofDestroyStepInfo, kProfiling)
REFUSE(aclprofFinalize, kProfiling)
REFUSE(aclprofGetStepTimestamp, kProfiling)
REFUSE(aclprofGetSupportedFeatures, kProfiling)
REFUSE(aclprofGetSupportedFeaturesV2, kProfiling)
REFUSE(aclprofInit, kProfiling)
REFUSE(aclprofMarkEx, kProfiling)
REFUSE(aclprofRegisterDeviceCallback, kProfiling)
REFUSE(aclprofSetConfig, kProfiling)
REFUSE(aclprofStart, kProfiling)
REFUSE(aclprofStop, kProfiling)
REFUSE(aclprofWarmup, kProfiling)

REFUSE(aclmdlFinalizeDump, kDump)
REFUSE(aclmdlInitDump, kDump)
REFUSE(aclmdlSetDump, kDump)
REFUSE(aclopStartDumpArgs, kDump)
REFUSE(aclopStopDumpArgs, kDump)

REFUSE_OBJECT(aclCreateGraphDumpOpt, kGraphs)
REFUSE(aclDestroyGraphDumpOpt, kGraphs)
REFUSE(aclGenGraphAndDumpForOp, kGraphs)

REFUSE(HcclAllGather, kCollectives)
REFUSE(HcclAllGatherV, kCollectives)
REFUSE(HcclAllReduce, kCollectives)
REFUSE(HcclAlltoAll, kCollectives)
REFUSE(HcclAlltoAllV, kCollectives)
REFUSE(HcclAlltoAllVC, kCollectives)
REFUSE(HcclBatchSendRecv, kCollectives)
REFUSE(HcclBroadcast, kCollectives)
REFUSE(HcclCommActivateCommMemory, kCollectives)
REFUSE(HcclCommDeactivateCommMemory, kCollectives)
REFUSE(HcclCommDeregister, kCollectives)
REFUSE(HcclCommDestroy, kCollectives)
REFUSE(HcclCommExchangeMem, kCollectives)
REFUSE(HcclCommInitAll, kCollectives)
REFUSE(HcclCommInitClusterInfoConfig, kCollectives)
REFUSE(HcclCommInitRootInfo, kCollectives)
REFUSE(HcclCommInitRootInfoConfig, kCollectives)
REFUSE(HcclCommInitRootInfoScalable, kCollectives)
REFUSE(HcclCommRegister, kCollectives)
REFUSE(HcclCommResume, kCollectives)
REFUSE(HcclCommSetMemoryRange, kCollectives)
REFUSE(HcclCommSymWinDeregister, kCollectives)
REFUSE(HcclCommSymWinRegister, kCollectives)
REFUSE(HcclCommUnsetMemoryRange, kCollectives)
REFUSE(HcclCommWorkingDevNicSet, kCollectives)
REFUSE(HcclCreateSubCommConfig, kCollectives)
REFUSE(HcclGetCommAsyncError, kCollectives)
REFUSE(HcclGetCommName, kCollectives)
REFUSE(HcclGetRootInfo, kCollectives)
REFUSE(HcclGetRootInfoScalable, kCollectives)
REFUSE(HcclRecv, kCollectives)
REFUSE(HcclReduce, kCollectives)
REFUSE(HcclReduceScatter, kCollectives)
REFUSE(HcclReduceScatterV, kCollectives)
REFUSE(HcclScatter, kCollectives)
REFUSE(HcclSend, kCollectives)

}  // extern "C"
