// Status codes of the C interface and the sentence that goes with a failure.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

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

// A part of a sentence: it points to a text, or holds a number. The code that joins parts is compiled once, not for
// each sentence.
class Words {
 public:
  Words(std::string_view text) : text_(text) {}
  Words(const std::string& text) : text_(text) {}
  Words(const char* text) : text_(text == nullptr ? "null" : text) {}
  Words(char letter) : size_(1) { own_[0] = letter; }
  template <std::signed_integral N>
  Words(N number) : Words(static_cast<long long>(number)) {}
  template <std::unsigned_integral N>
  Words(N number) : Words(static_cast<unsigned long long>(number)) {}
  Words(long long number);
  Words(unsigned long long number);
  Words(double number);  // in 6 digits
  Words(const void* address);

  std::string_view text() const { return size_ > 0 ? std::string_view(own_, size_) : text_; }

 private:
  std::string_view text_;
  size_t size_ = 0;
  char own_[24];
};

std::string join(std::initializer_list<Words> sentence);

// The number with at most so many digits, whatever the locale.
std::string in_digits(double number, int digits);

template <class... Parts>
std::string concat(const Parts&... parts) {
  return join({Words(parts)...});
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
