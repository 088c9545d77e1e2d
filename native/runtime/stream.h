// Streams: in-order queues of tasks. Different streams run side by side.
//
// After a fork the child's streams are empty: work that was in flight goes on in the parent only, and the next
// synchronise of such a stream in the child reports that as a failure, once. The child may submit new work as usual.
// At the exit of the process the streams' threads end after what they are running. What is left then runs in the same
// order, on the threads of those who wait for it, or query it, and for no one else: destructors find what they
// synchronise done, and what nobody asks for is dropped.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <optional>

#include "runtime/status.h"

namespace descend {

// Work for a stream. `run` returns a failure (or throws) when the step failed: the stream goes on, and its next
// synchronise reports it, once. `bytes` estimates the memory touched and decides who runs it. The closure is destroyed
// once it ran, on the thread that ran it, before the task counts as done. A task must not wait for its own stream.
struct Task {
  std::function<Status()> run;
  int64_t bytes = 0;
};

namespace detail {
// Turns exceptions into failures.
template <class Body>
Status guarded(Body&& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Status{Code::kRuntimeError, "out of memory", true};
  } catch (const std::exception& error) {
    return Status{Code::kRuntimeError, error.what()};
  } catch (...) {
    return Status{Code::kRuntimeError, "a step failed for an unknown reason"};
  }
}

class StreamQueue;
class EventRecord;
}  // namespace detail

class Event;

// A gate for streams: they wait until it is opened, once.
class Latch {
 public:
  Latch();
  void open();

 private:
  friend class Stream;
  std::shared_ptr<detail::EventRecord> record_;
};

// All members may be called from any thread at any time, but for the destructor.
class Stream {
 public:
  static constexpr int64_t kInlineBytes = 1 << 20;  // a task up to this size is small

  // Streams of one group, a device's, can be waited for together.
  explicit Stream(int32_t group = 0);
  ~Stream();  // waits for the work in it

  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // On an idle stream a small task runs here and now, on the caller's thread; otherwise it is queued and the stream's
  // thread, started when first needed, takes it. (Where the system gives no thread, the caller runs it.) Throws
  // std::bad_alloc, as record and wait do, where there is no memory to queue it.
  void submit(Task task);

  // The same for work given by reference, with nothing allocated where it runs at once: runs `body()` inline and
  // returns true when the stream is idle and bytes is small; returns false, having done nothing, when the caller must
  // submit().
  template <class Body>
  bool try_run_inline(int64_t bytes, Body&& body) {
    if (!begin_inline(bytes)) return false;
    end_inline(detail::guarded(body));
    return true;
  }

  // Waits until everything submitted so far is done, helping to drain the queue, and returns the first failure since
  // the last synchronise. With a timeout: helps with small tasks only; kStreamSyncTimeout when it runs out, and a
  // failure then waits for the next call.
  Status synchronize(std::optional<std::chrono::nanoseconds> timeout = std::nullopt);

  // Waits as synchronize does, but leaves a failure for the next synchronize; false if the timeout ran out.
  bool drain(std::optional<std::chrono::nanoseconds> timeout = std::nullopt);

  // The first failure since the last synchronise, with which it counts as told.
  Status take_failure();

  // Whether work after a failure is dropped, until synchronize has returned the failure.
  void set_stop_on_failure(bool stop);

  bool idle() const;    // everything submitted has completed
  void drop_pending();  // forgets waits and what has not begun (aclrtDestroyStreamForce); records stay

  // In stream order. A wait is for the record that is the event's latest now: recording the event again does not move
  // it. `then` is called, under a lock, when the stream has come to it.
  void record(const std::shared_ptr<Event>& event, std::function<void()> then = nullptr);
  // With a limit, a wait that would last longer ends, and is a failure.
  void wait(const std::shared_ptr<Event>& event, std::optional<std::chrono::nanoseconds> limit = std::nullopt);
  void wait(const Latch& latch);
  // Waits until `holds()` returns true; the stream's thread calls it repeatedly.
  void wait_until(std::function<bool()> holds, std::optional<std::chrono::nanoseconds> limit = std::nullopt);

 private:
  bool begin_inline(int64_t bytes);
  void end_inline(Status status);

  std::shared_ptr<detail::StreamQueue> queue_;
};

// A point in a stream.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  bool complete() const;  // there is a latest record, and it is complete
  // Returns when the latest record is complete, or if there is none; false if the timeout ran out.
  bool wait(std::optional<std::chrono::nanoseconds> timeout = std::nullopt);
  // When the latest record completed; empty if never or not yet.
  std::optional<std::chrono::steady_clock::time_point> time() const;
  void reset();                                               // back to never recorded
  bool waited_for() const { return waits_.use_count() > 1; }  // whether a wait for it in a stream has not ended

 private:
  friend class Stream;
  std::shared_ptr<detail::EventRecord> latest() const;
  void set_latest(std::shared_ptr<detail::EventRecord> record);

  std::shared_ptr<detail::EventRecord> latest_;
  const std::shared_ptr<void> waits_ = std::make_shared<char>();  // each wait has a copy
};

// Waits for the work in flight on every live stream (freeing memory), or on those of a group (aclrtSynchronizeDevice),
// leaving failures for each stream's own synchronise. False if the timeout ran out.
bool wait_for_all_streams(std::optional<std::chrono::nanoseconds> timeout = std::nullopt,
                          std::optional<int32_t> group = std::nullopt);

}  // namespace descend
