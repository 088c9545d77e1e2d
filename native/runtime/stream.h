// Streams: in-order queues of tasks. Different streams run side by side.
//
// After a fork the child's streams are empty: work that was in flight goes on in the parent only. The next
// synchronization of such a stream in the child reports that as a failure, once. The child may submit new work as
// usual.
//
// At the exit of the process each stream's thread ends after its current task. Tasks that are left run only if somebody
// waits for them or queries the stream, on that caller's thread and in order. So destructors can still synchronize, and
// tasks that nobody asks for are dropped.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "runtime/status.h"
#include "runtime/task.h"

namespace descend {

namespace detail {
class StreamQueue;
class EventRecord;
}  // namespace detail

class Event;

// Streams wait for a latch until it is opened. It opens once.
class Latch {
 public:
  Latch();
  void open();

 private:
  friend class Stream;
  std::shared_ptr<detail::EventRecord> record_;
};

// All members but the destructor may be called from any thread at any time.
class Stream {
 public:
  static constexpr int64_t kInlineBytes = kSmallTask;  // a task up to this size may run on the caller's thread

  // Streams of one group (one device) can be waited for together.
  explicit Stream(int32_t group = 0);
  ~Stream();  // waits for the work in it

  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // If the stream is idle, a small task runs at once, on the caller's thread. Otherwise it is queued for the stream's
  // thread, which is started when first needed. (If the system gives no thread, the caller runs the task.) Throws
  // std::bad_alloc if there is no memory to queue the task. So do record and wait.
  void submit(Task task);

  // Runs body() at once and returns true if the stream is idle and `bytes` is small. Otherwise does nothing and returns
  // false; the caller must submit() then. Allocates nothing.
  template <class Body>
  bool try_run_inline(int64_t bytes, Body&& body) {
    if (!begin_inline(bytes)) return false;
    end_inline(detail::guarded(body));
    return true;
  }

  // Waits until everything submitted so far is done, and runs tasks from the queue meanwhile. Returns the first failure
  // since the last synchronize(). With a timeout it runs small tasks only. If the timeout runs out, it returns
  // kStreamSyncTimeout, and a failure is returned by the next call.
  Status synchronize(std::optional<std::chrono::nanoseconds> timeout = std::nullopt);

  // Waits as synchronize() does, but leaves a failure for the next synchronize(). False if the timeout ran out.
  bool drain(std::optional<std::chrono::nanoseconds> timeout = std::nullopt);

  // Returns the first failure since the last synchronize(), which does not return it again.
  Status take_failure();

  // Whether work after a failure is dropped, until synchronize has returned the failure.
  void set_stop_on_failure(bool stop);

  bool idle() const;       // everything submitted has completed
  bool runs_here() const;  // the caller is a task of this stream
  void drop_pending();     // drops waits and tasks that have not begun (aclrtDestroyStreamForce), but no records

  // Both are done in stream order. A wait is for the event's latest record at this moment; recording the event again
  // does not change that. `then` is called, under a lock, when the stream reaches the record.
  void record(const std::shared_ptr<Event>& event, std::function<void()> then = nullptr);
  // A wait that lasts longer than the limit ends and is a failure.
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
  // Waits until the latest record is complete, if there is one. False if the timeout ran out.
  bool wait(std::optional<std::chrono::nanoseconds> timeout = std::nullopt);
  // When the latest record completed; empty if it has not, or if there is none.
  std::optional<std::chrono::steady_clock::time_point> time() const;
  void reset();                                               // as if it had never been recorded
  bool waited_for() const { return waits_.use_count() > 1; }  // whether a wait for it in a stream has not ended

 private:
  friend class Stream;
  std::shared_ptr<detail::EventRecord> latest() const;
  void set_latest(std::shared_ptr<detail::EventRecord> record);

  std::shared_ptr<detail::EventRecord> latest_;
  const std::shared_ptr<void> waits_ = std::make_shared<char>();  // each wait has a copy
};

// Waits for the work in flight on every stream, or on those of a group. Failures are left for each stream's own
// synchronize(). False if the timeout ran out.
bool wait_for_all_streams(std::optional<std::chrono::nanoseconds> timeout = std::nullopt,
                          std::optional<int32_t> group = std::nullopt);

}  // namespace descend
