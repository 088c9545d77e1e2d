// Status codes of the C interface and the sentence that goes with a failure.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <utility>

namespace descend {

// aclnnStatus and aclError share one number space; each name below is one value of either.
enum class Code : int32_t {
  kSuccess = 0,

  kInvalidParam = 100000,
  kUninitialize = 100001,
  kRepeatInitialize = 100002,
  kRepeatFinalize = 100037,
  kBadAlloc = 200000,
  kApiNotSupport = 200001,
  kInvalidDevice = 200002,
  kInvalidResourceHandle = 200005,
  kInternalError = 500000,
  kFailure = 500001,
  kStreamSyncTimeout = 507046,
  kEventSyncTimeout = 507047,

  kParamNullptr = 161001,
  kParamInvalid = 161002,
  kRuntimeError = 361001,
  kInner = 561000,
  kInferShapeError = 561001,
  kTilingError = 561002,
  kFindKernelError = 561003,
  kCreateExecutor = 561101,
  kInnerNullptr = 561103,
};

// The constant's name in CANN's headers, e.g. "ACLNN_ERR_PARAM_INVALID"; "" for a number that is none.
const char* code_name(Code code);

struct [[nodiscard]] Status {
  Code code = Code::kSuccess;
  std::string sentence;
  bool no_memory = false;  // for Python, where that is a MemoryError, whatever the code

  bool ok() const { return code == Code::kSuccess; }
};

// Joins whatever can be streamed; used to build sentences, on the failing path only.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

template <class... Parts>
Status failure(Code code, const Parts&... parts) {
  return Status{code, concat(parts...)};
}

// An operator's failure where there was no memory for `what`.
Status no_memory(const char* operator_name, const std::string& what);

}  // namespace descend

#define DESCEND_RETURN_IF_ERROR(expression)                                      \
  do {                                                                           \
    if (::descend::Status status_ = (expression); !status_.ok()) return status_; \
  } while (0)
