// The wrapper of every C function. No exception leaves it. A failure becomes a code and a sentence.
#pragma once

#include <new>
#include <string_view>

#include "runtime/status.h"

namespace descend::capi {

// Codes of the C interface alone, beside those of Code.
inline constexpr Code kInvalidFile{100003};
inline constexpr Code kOpInputNotMatch{100021};
inline constexpr Code kOpOutputNotMatch{100022};
inline constexpr Code kOpAttributeNotMatch{100023};
inline constexpr Code kOpNotFound{100024};
inline constexpr Code kContextNull{107002};
inline constexpr Code kFeatureUnsupported{200006};  // not 207000: torch_npu ignores that one
inline constexpr Code kContextRelease{507007};

// Whether the library may be used: between aclInit and aclFinalize.
enum class Life : uint8_t { kBefore, kAlive, kAfter };
Life life();
void set_life(Life now);

Status require_initialized();

// Fails in a forked child that has called descendRefuseInChild.
Status require_no_refusal();

inline Status null_argument(const char* name) {
  return failure(Code::kInvalidParam, name, " is null, but must be given.");
}

// The failure for a handle that names no live stream, event or context.
inline Status stale(const char* name) {
  return failure(Code::kInvalidResourceHandle, name, " is not one, or has been destroyed already.");
}

// Keeps the sentence for aclGetRecentErrMsg and returns the number. It allocates nothing, since it also reports that
// there is no memory.
int32_t report(const char* function, Code code, std::string_view sentence) noexcept;
inline int32_t report(const char* function, const Status& status) noexcept {
  return report(function, status.code, status.sentence);
}

// Runs body() -> Status. A failure, or anything thrown, becomes a number and a sentence. The name of the function is
// put before a sentence that does not begin with it.
template <class Body>
int32_t boundary(const char* function, Body body, Code no_memory = Code::kBadAlloc,
                 Code unexpected = Code::kInternalError) noexcept {
  try {
    const Status status = body();
    return status.ok() ? 0 : report(function, status);
  } catch (const std::bad_alloc&) {
    return report(function, no_memory, "there is no memory.");
  } catch (const std::exception& error) {
    return report(function, unexpected, error.what());
  } catch (...) {
    return report(function, unexpected, "an unknown failure.");
  }
}

// The same for functions of the runtime, which need aclInit first.
template <class Body>
int32_t runtime_call(const char* function, Body body) noexcept {
  return boundary(function, [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(require_initialized());
    return body();
  });
}

}  // namespace descend::capi
