#include "capi/callback_queue.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "capi/boundary.h"
#include "runtime/futex.h"
#include "runtime/immortal.h"

namespace descend::capi {
namespace {

constexpr Code kStreamSubscribe{107011}, kThreadSubscribe{107012}, kNoCallbackThread{107015}, kReportTimeout{507012};

}  // namespace

// The callbacks for one thread.
struct CallbackQueue {
  uint64_t thread = 0;
  int32_t device = 0;
  bool ended = false;                                              // by aclFinalize, or in a forked child
  std::map<const DeviceStream*, std::deque<CallbackPtr>> streams;  // the subscribed streams, with what each calls
};

namespace {

struct Subscriptions {
  std::mutex mutex;
  std::map<uint64_t, std::shared_ptr<CallbackQueue>> threads;
  std::atomic<uint32_t> changes{0};  // a futex: threads that wait for callbacks sleep on it
};
Immortal<Subscriptions> subscriptions;

uint64_t this_thread() { return static_cast<uint64_t>(pthread_self()); }

void changed() {
  subscriptions->changes.fetch_add(1);
  futex_wake(subscriptions->changes, kWakeAll);
}

// This and the next two functions are called with the lock held.
CallbackQueue* queue_of(const DeviceStream& stream) {
  return stream.callbacks && !stream.callbacks->ended ? stream.callbacks.get() : nullptr;
}

// Takes a stream out of its thread's queue and returns what it has still to call.
std::deque<CallbackPtr> take_out(DeviceStream& stream) {
  const auto queue = std::exchange(stream.callbacks, nullptr);
  auto left = std::move(queue->streams[&stream]);
  queue->streams.erase(&stream);
  if (queue->streams.empty() && !queue->ended) subscriptions->threads.erase(queue->thread);
  return left;
}

// Ends every subscription.
std::map<uint64_t, std::shared_ptr<CallbackQueue>> take_all() {
  for (auto& [thread, queue] : subscriptions->threads) queue->ended = true;
  return std::exchange(subscriptions->threads, {});
}

void abandon(const std::deque<CallbackPtr>& callbacks) {
  for (const CallbackPtr& callback : callbacks) {
    callback->status = {Code::kRuntimeError, "A callback was not run: its thread is no longer subscribed."};
    callback->done.open();
  }
}

// Runs on the stream when it reaches the callback.
Status hand_over(const std::weak_ptr<DeviceStream>& to, const CallbackPtr& callback) {
  if (const auto stream = to.lock()) {
    const std::lock_guard lock(subscriptions->mutex);
    if (CallbackQueue* queue = queue_of(*stream)) {
      queue->streams[stream.get()].push_back(callback);
      changed();
      return {};
    }
  }
  abandon({callback});
  return callback->status;
}

}  // namespace

Status subscribe(uint64_t thread, DeviceStream& stream) {
  const std::lock_guard lock(subscriptions->mutex);
  if (const CallbackQueue* other = queue_of(stream)) {
    return failure(kStreamSubscribe, "the stream has been subscribed already, for thread ", other->thread, ".");
  }
  auto& queue = subscriptions->threads[thread];
  if (!queue) queue = std::make_shared<CallbackQueue>(CallbackQueue{thread, stream.device, false, {}});
  if (queue->device != stream.device) {
    return failure(kThreadSubscribe, "thread ", thread, " serves streams of device ", queue->device,
                   ", and cannot serve one of device ", stream.device, ", too.");
  }
  queue->streams[&stream];
  stream.callbacks = queue;
  changed();
  return {};
}

Status unsubscribe(uint64_t thread, DeviceStream& stream) {
  std::deque<CallbackPtr> left;
  {
    const std::lock_guard lock(subscriptions->mutex);
    const CallbackQueue* queue = queue_of(stream);
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

Status launch_callback(aclrtCallback function, void* data, bool blocks, const std::shared_ptr<DeviceStream>& stream) {
  {
    const std::lock_guard lock(subscriptions->mutex);
    if (queue_of(*stream) == nullptr) {
      return failure(kNoCallbackThread, "no thread has been subscribed for the stream.");
    }
  }
  const auto callback = std::make_shared<Callback>(Callback{function, data, {}, {}});
  stream->submit({[to = std::weak_ptr(stream), callback] { return hand_over(to, callback); }, 0});
  if (!blocks) return {};
  stream->wait(callback->done);
  stream->submit({[callback] { return callback->status; }, 0});
  return {};
}

Status next_callback(const Deadline& deadline, CallbackPtr* next) {
  for (;;) {
    const uint32_t seen = subscriptions->changes.load();
    bool subscribed = false;
    {
      const std::lock_guard lock(subscriptions->mutex);
      const auto found = subscriptions->threads.find(this_thread());
      subscribed = found != subscriptions->threads.end();
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
    futex_wait_until(subscriptions->changes, seen, deadline);
  }
}

void abandon_callbacks(DeviceStream& stream) {
  std::deque<CallbackPtr> left;
  {
    const std::lock_guard lock(subscriptions->mutex);
    if (stream.callbacks == nullptr) return;
    left = take_out(stream);
  }
  abandon(left);
}

void forget_callbacks() {
  std::map<uint64_t, std::shared_ptr<CallbackQueue>> queues;
  {
    const std::lock_guard lock(subscriptions->mutex);
    queues = take_all();
  }
  for (const auto& [thread, queue] : queues) {
    for (const auto& [stream, left] : queue->streams) abandon(left);
  }
  changed();
}

void lock_callbacks() { subscriptions->mutex.lock(); }
void unlock_callbacks() { subscriptions->mutex.unlock(); }

// In the child only the thread that forked exists, and its streams are empty. So no thread is subscribed there.
void unlock_callbacks_in_child() {
  const auto queues = take_all();
  subscriptions->mutex.unlock();
}

}  // namespace descend::capi
