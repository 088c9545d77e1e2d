// Functions of the program that a stream calls: on its own thread (aclrtLaunchHostFunc), or on a thread that the
// program subscribed for the stream (aclrtLaunchCallback) and that calls aclrtProcessReport.
#include <cxxabi.h>

#include <exception>

#include "capi/callback_queue.h"
#include "capi/stream.h"

using namespace descend;
using namespace descend::capi;

namespace {

Status failure_of(const std::exception_ptr& thrown) {
  if (thrown == nullptr) return {};
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    return failure(Code::kInternalError, "A callback threw an exception: \"", error.what(), "\".");
  } catch (...) {
    return failure(Code::kInternalError, "A callback threw an exception.");
  }
}

// Runs the callback and lets its stream go on. No boundary is around the function: pthread_exit() inside it unwinds the
// stack. What is thrown then has no address, which UndefinedBehaviorSanitizer takes for a null reference.
#if defined(__GNUC__) && !defined(__clang__)
__attribute__((no_sanitize("undefined")))
#endif
int32_t
run(Callback& callback) {
  struct Done {
    ~Done() { latch.open(); }
    Latch& latch;
  } const done{callback.done};
  std::exception_ptr thrown;
  try {
    callback.function(callback.data);
  } catch (const abi::__forced_unwind&) {
    callback.status.code = Code::kRuntimeError;
    throw;
  } catch (...) {
    thrown = std::current_exception();
  }
  return boundary("aclrtProcessReport", [&] {
    Status status = failure_of(thrown);
    if (!status.ok()) callback.status = {Code::kRuntimeError, status.sentence};
    return status;
  });
}

Status check_launch(const void* function, int blocks) {
  if (function == nullptr) return null_argument("fn");
  if (blocks == ACL_CALLBACK_NO_BLOCK || blocks == ACL_CALLBACK_BLOCK) return {};
  return failure(Code::kInvalidParam, "blockType is ", blocks,
                 ", but must be ACL_CALLBACK_NO_BLOCK or ACL_CALLBACK_BLOCK.");
}

}  // namespace

aclError aclrtSubscribeReport(uint64_t threadId, aclrtStream stream) {
  return runtime_call("aclrtSubscribeReport", [&]() -> Status {
    std::shared_ptr<DeviceStream> found;
    DESCEND_RETURN_IF_ERROR(get_device_stream(stream, &found));
    return subscribe(threadId, *found);
  });
}

aclError aclrtUnSubscribeReport(uint64_t threadId, aclrtStream stream) {
  return runtime_call("aclrtUnSubscribeReport", [&]() -> Status {
    std::shared_ptr<DeviceStream> found;
    DESCEND_RETURN_IF_ERROR(get_device_stream(stream, &found));
    return unsubscribe(threadId, *found);
  });
}

aclError aclrtLaunchCallback(aclrtCallback fn, void* userData, aclrtCallbackBlockType blockType, aclrtStream stream) {
  return runtime_call("aclrtLaunchCallback", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_launch(reinterpret_cast<const void*>(fn), static_cast<int>(blockType)));
    std::shared_ptr<DeviceStream> found;
    DESCEND_RETURN_IF_ERROR(get_device_stream(stream, &found));
    return launch_callback(fn, userData, blockType == ACL_CALLBACK_BLOCK, found);
  });
}

aclError aclrtProcessReport(int32_t timeout) {
  CallbackPtr callback;
  const int32_t code = runtime_call("aclrtProcessReport", [&]() -> Status {
    if (timeout < -1 || timeout == 0) {
      return failure(Code::kInvalidParam, "timeout is ", timeout, " ms, but must be above 0, or -1 for none.");
    }
    std::optional<std::chrono::nanoseconds> limit;
    if (timeout > 0) limit = std::chrono::milliseconds(timeout);
    return next_callback(deadline_after(limit), &callback);
  });
  return code == 0 ? run(*callback) : code;
}

aclError aclrtLaunchHostFunc(aclrtStream stream, aclrtHostFunc fn, void* args) {
  return runtime_call("aclrtLaunchHostFunc", [&]() -> Status {
    if (fn == nullptr) return null_argument("fn");
    std::shared_ptr<Stream> found;
    DESCEND_RETURN_IF_ERROR(get_stream(stream, &found));
    // INT64_MAX: never on the caller's thread, which may hold a lock that the function needs.
    found->submit({[=]() -> Status {
                     fn(args);
                     return {};
                   },
                   INT64_MAX});
    return {};
  });
}
