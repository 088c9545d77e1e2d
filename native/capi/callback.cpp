// Functions of the program that a stream calls: on its own thread (aclrtLaunchHostFunc), or on one that the program has
// subscribed for it (aclrtLaunchCallback) and that calls aclrtProcessReport.
#include <cxxabi.h>
#include <pthread.h>

#include <chrono>
#include <deque>
#include <exception>
#include <map>
#include <utility>

#include "capi/device.h"
#include "runtime/event_record.h"
#include "runtime/futex.h"
#include "runtime/immortal.h"

namespace descend::capi {
namespace {

constexpr Code kStreamSubscribe{107011}, kThreadSubscribe{107012}, kNoCallbackThread{107015}, kReportTimeout{507012};

// A callback whose turn has come in its stream.
struct Callback {
  aclrtCallback function = nullptr;
  void* data = nullptr;
  Latch done;
  Status status;  // once it is done
};

using CallbackPtr = std::shared_ptr<Callback>;

}  // namespace

// What is to be called on one thread.
struct ReportQueue {
  uint64_t thread = 0;
  int32_t device = 0;
  bool ended = false;                                              // with the library, or for a fork
  std::map<const DeviceStream*, std::deque<CallbackPtr>> streams;  // those that are subscribed, and what each calls
};

namespace {

struct Reports {
  std::mutex mutex;
  std::map<uint64_t, std::shared_ptr<ReportQueue>> threads;
  std::atomic<uint32_t> changes{0};  // who waits for callbacks sleeps on it
};
Immortal<Reports> reports;

uint64_t this_thread() { return static_cast<uint64_t>(pthread_self()); }

void changed() {
  reports->changes.fetch_add(1);
  futex_wake(reports->changes, kWakeAll);
}

// With the lock held:
ReportQueue* queue_of(const DeviceStream& stream) {
  return stream.reports && !stream.reports->ended ? stream.reports.get() : nullptr;
}

// Takes a stream out of its thread's queue, and with it what it has still to call.
std::deque<CallbackPtr> take_out(DeviceStream& stream) {
  const auto queue = std::exchange(stream.reports, nullptr);
  auto left = std::move(queue->streams[&stream]);
  queue->streams.erase(&stream);
  if (queue->streams.empty() && !queue->ended) reports->threads.erase(queue->thread);
  return left;
}

// Everything: no thread is subscribed any more.
std::map<uint64_t, std::shared_ptr<ReportQueue>> take_all() {
  for (auto& [thread, queue] : reports->threads) queue->ended = true;
  return std::exchange(reports->threads, {});
}

void abandon(const std::deque<CallbackPtr>& callbacks) {
  for (const CallbackPtr& callback : callbacks) {
    callback->status = {Code::kRuntimeError, "A callback was not run: its thread is no longer subscribed."};
    callback->done.open();
  }
}

Status subscribe(uint64_t thread, DeviceStream& stream) {
  const std::lock_guard lock(reports->mutex);
  if (const ReportQueue* other = queue_of(stream)) {
    return failure(kStreamSubscribe, "the stream has been subscribed already, for thread ", other->thread, ".");
  }
  auto& queue = reports->threads[thread];
  if (!queue) queue = std::make_shared<ReportQueue>(ReportQueue{thread, stream.device, false, {}});
  if (queue->device != stream.device) {
    return failure(kThreadSubscribe, "thread ", thread, " serves streams of device ", queue->device,
                   ", and cannot serve one of device ", stream.device, ", too.");
  }
  queue->streams[&stream];
  stream.reports = queue;
  changed();
  return {};
}

Status unsubscribe(uint64_t thread, DeviceStream& stream) {
  std::deque<CallbackPtr> left;
  {
    const std::lock_guard lock(reports->mutex);
    const ReportQueue* queue = queue_of(stream);
    if (queue == nullptr) return failure(kStreamSubscribe, "the stream has not been subscribed.");
    if (queue->thread != thread) {
      return failure(kThreadSubscribe, "the stream has been subscribed for thread ", queue->thread, ", not ", thread,
                     ".");
    }
    left = take_out(stream);
  }
  abandon(left);
  changed();
  return {};
}

// On the stream, when the callback's turn has come.
Status hand_over(const std::weak_ptr<DeviceStream>& to, const CallbackPtr& callback) {
  if (const auto stream = to.lock()) {
    const std::lock_guard lock(reports->mutex);
    if (ReportQueue* queue = queue_of(*stream)) {
      queue->streams[stream.get()].push_back(callback);
      changed();
      return {};
    }
  }
  abandon({callback});
  return callback->status;
}

Status launch(aclrtCallback function, void* data, bool blocks, const std::shared_ptr<DeviceStream>& stream) {
  {
    const std::lock_guard lock(reports->mutex);
    if (queue_of(*stream) == nullptr)
      return failure(kNoCallbackThread, "no thread has been subscribed for the stream.");
  }
  const auto callback = std::make_shared<Callback>(Callback{function, data, {}, {}});
  stream->submit({[to = std::weak_ptr(stream), callback] { return hand_over(to, callback); }, 0});
  if (!blocks) return {};
  stream->wait(callback->done);
  stream->submit({[callback] { return callback->status; }, 0});
  return {};
}

// The next callback for this thread, of whichever stream; waits for one until the deadline.
Status next_callback(const Deadline& deadline, CallbackPtr* next) {
  for (;;) {
    const uint32_t seen = reports->changes.load();
    bool subscribed = false;
    {
      const std::lock_guard lock(reports->mutex);
      const auto found = reports->threads.find(this_thread());
      subscribed = found != reports->threads.end();
      if (subscribed) {
        for (auto& [stream, waiting] : found->second->streams) {
          if (waiting.empty()) continue;
          *next = std::move(waiting.front());
          waiting.pop_front();
          return {};
        }
      }
    }
    DESCEND_RETURN_IF_ERROR(require_initialized());
    if (deadline && std::chrono::steady_clock::now() >= *deadline) {
      return subscribed ? failure(kReportTimeout, "there was no callback in this time.")
                        : failure(kThreadSubscribe, "this thread has not been subscribed for a stream.");
    }
    futex_wait_until(reports->changes, seen, deadline);
  }
}

Status told(const std::exception_ptr& thrown) {
  if (thrown == nullptr) return {};
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    return failure(Code::kInternalError, "A callback threw an exception: \"", error.what(), "\".");
  } catch (...) {
    return failure(Code::kInternalError, "A callback threw an exception.");
  }
}

// Runs it, and lets its stream go on. No boundary is around the function: one that ends its thread unwinds. What is
// thrown then has no address, which UndefinedBehaviorSanitizer takes for a null reference.
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
    Status status = told(thrown);
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

void end_reports(DeviceStream& stream) {
  std::deque<CallbackPtr> left;
  {
    const std::lock_guard lock(reports->mutex);
    if (stream.reports == nullptr) return;
    left = take_out(stream);
  }
  abandon(left);
}

void forget_reports() {
  std::map<uint64_t, std::shared_ptr<ReportQueue>> queues;
  {
    const std::lock_guard lock(reports->mutex);
    queues = take_all();
  }
  for (const auto& [thread, queue] : queues) {
    for (const auto& [stream, left] : queue->streams) abandon(left);
  }
  changed();
}

void lock_reports() { reports->mutex.lock(); }
void unlock_reports() { reports->mutex.unlock(); }

// The threads that were subscribed do not exist in the child, but for the one that forked, whose streams are empty.
void unlock_reports_in_child() {
  const auto queues = take_all();
  reports->mutex.unlock();
}

}  // namespace descend::capi

using namespace descend;
using namespace descend::capi;

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
    return launch(fn, userData, blockType == ACL_CALLBACK_BLOCK, found);
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
    // Never on the caller's thread, which may hold what the function needs.
    found->submit({[=]() -> Status {
                     fn(args);
                     return {};
                   },
                   INT64_MAX});
    return {};
  });
}
