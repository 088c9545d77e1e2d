#include "runtime/status.h"

#include <charconv>
#include <cstdio>
#include <sstream>

namespace descend {

const char* code_name(Code code) {
  switch (code) {
    case Code::kSuccess:
      return "ACL_SUCCESS";
    case Code::kInvalidParam:
      return "ACL_ERROR_INVALID_PARAM";
    case Code::kUninitialize:
      return "ACL_ERROR_UNINITIALIZE";
    case Code::kRepeatInitialize:
      return "ACL_ERROR_REPEAT_INITIALIZE";
    case Code::kRepeatFinalize:
      return "ACL_ERROR_REPEAT_FINALIZE";
    case Code::kBadAlloc:
      return "ACL_ERROR_BAD_ALLOC";
    case Code::kApiNotSupport:
      return "ACL_ERROR_API_NOT_SUPPORT";
    case Code::kInvalidDevice:
      return "ACL_ERROR_INVALID_DEVICE";
    case Code::kInvalidResourceHandle:
      return "ACL_ERROR_INVALID_RESOURCE_HANDLE";
    case Code::kInternalError:
      return "ACL_ERROR_INTERNAL_ERROR";
    case Code::kFailure:
      return "ACL_ERROR_FAILURE";
    case Code::kStreamSyncTimeout:
      return "ACL_ERROR_RT_STREAM_SYNC_TIMEOUT";
    case Code::kEventSyncTimeout:
      return "ACL_ERROR_RT_EVENT_SYNC_TIMEOUT";
    case Code::kParamNullptr:
      return "ACLNN_ERR_PARAM_NULLPTR";
    case Code::kParamInvalid:
      return "ACLNN_ERR_PARAM_INVALID";
    case Code::kRuntimeError:
      return "ACLNN_ERR_RUNTIME_ERROR";
    case Code::kInner:
      return "ACLNN_ERR_INNER";
    case Code::kInferShapeError:
      return "ACLNN_ERR_INNER_INFERSHAPE_ERROR";
    case Code::kTilingError:
      return "ACLNN_ERR_INNER_TILING_ERROR";
    case Code::kFindKernelError:
      return "ACLNN_ERR_INNER_FIND_KERNEL_ERROR";
    case Code::kCreateExecutor:
      return "ACLNN_ERR_INNER_CREATE_EXECUTOR";
    case Code::kInnerNullptr:
      return "ACLNN_ERR_INNER_NULLPTR";
  }
  return "";
}

Words::Words(long long number) : size_(std::to_chars(own_, std::end(own_), number).ptr - own_) {}
Words::Words(unsigned long long number) : size_(std::to_chars(own_, std::end(own_), number).ptr - own_) {}
Words::Words(double number) : size_(in_digits(number, 6).copy(own_, sizeof own_)) {}
Words::Words(const void* address) : size_(std::snprintf(own_, sizeof own_, "%p", address)) {}

std::string join(std::initializer_list<Words> sentence) {
  std::string text;
  for (const Words& words : sentence) text += words.text();
  return text;
}

std::string in_digits(double number, int digits) {
  std::ostringstream out;
  out.precision(digits);
  out << number;
  return out.str();
}

Status no_memory(const char* operator_name, const std::string& what) {
  return {Code::kRuntimeError, concat(operator_name, ": there is no memory for ", what, "."), true};
}

}  // namespace descend
