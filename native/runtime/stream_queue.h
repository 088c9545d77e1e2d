// The implementation of a Stream: the queue, the threads that run its tasks, and the threads that wait for it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "runtime/event_record.h"
#include "runtime/futex.h"
#include "runtime/task.h"
#include "runtime/thread.h"

namespace descend::detail {

class StreamQueue : public std::enable_shared_from_this<StreamQueue> {
 public:
  enum class Kind { kTask, kRecord, kWait };
  struct Item {
    Kind kind = Kind::kTask;
    Task task;
    std::shared_ptr<EventRecord> record;
    std::optional<std::chrono::nanoseconds> limit;  // of a wait, counted from its turn in the queue
    std::shared_ptr<void> token;                    // of a wait, released when the wait is over
  };

  explicit StreamQueue(int32_t group_number) : group(group_number) {}

  bool begin_inline() {
    uint64_t now = state_.load(std::memory_order_relaxed);
    return (now & kNotIdle) == 0 && ((now & kFailed) == 0 || !stop_on_failure_.load(std::memory_order_relaxed)) &&
           state_.compare_exchange_strong(now, now | kRunning, std::memory_order_acquire, std::memory_order_relaxed);
  }
  void end_inline(Status status) {
    uint64_t now = state_.load(std::memory_order_relaxed);
    const bool plain = status.ok() && (now & kNotIdle) == kRunning;
    // Fails if another thread has queued an item, or begun to wait, in the meantime.
    if (plain && state_.compare_exchange_strong(now, now - kRunning + kTicket, std::memory_order_release,
                                                std::memory_order_relaxed)) {
      return;
    }
    end_inline_slowly(std::move(status));
  }
  bool idle() const { return (state_.load(std::memory_order_acquire) & kBusy) == 0; }
  bool idle_and_well() const { return (state_.load(std::memory_order_acquire) & (kBusy | kFailed)) == 0; }

  bool runs_here() const;  // the caller is a task of this queue

  void enqueue(Item item);
  void drop_pending();
  // Waits for all items that are in the queue now, or for those up to `last`. False if the deadline passed first. Runs
  // tasks meanwhile, of any size or small ones only. Throws WaitsForItself.
  bool drain(const Deadline& deadline, bool any_size, const EventRecord* last = nullptr);
  Status take_failure();
  void set_stop_on_failure(bool stop) { stop_on_failure_ = stop; }
  uint64_t tasks_left();

  // The thread ends after its current task, and none is started again. The threads that wait for the remaining items
  // then run them, and also the items of other stopped queues that these wait for.
  void ask_to_stop();
  bool stopped() const { return stop_; }
  bool join_thread(const Deadline& deadline);  // after ask_to_stop; false if the deadline passed first
  void step();  // runs the first item of a stopped queue, unless it must wait; for callers that query repeatedly

  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }
  void forget_parent();  // in the child, before unlock_after_fork

  const int32_t group;
  size_t place = 0;  // in the list of live streams, whose lock guards it

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Items = std::list<Item>;  // a list, since splicing needs no allocation under the lock or in a forked child

  // The state: flags, and the number of items done. While none of the first three flags is set, a small task runs by
  // changing this word alone. All other changes are made under the mutex.
  static constexpr uint64_t kRunning = 1;  // a thread runs an item; never two at once
  static constexpr uint64_t kQueued = 2;   // the queue is not empty
  static constexpr uint64_t kWatched = 4;  // a thread sleeps until an item is done
  static constexpr uint64_t kFailed = 8;   // synchronize() has a failure to return
  static constexpr uint64_t kTicket = 16;
  static constexpr uint64_t kBusy = kRunning | kQueued;
  static constexpr uint64_t kNotIdle = kBusy | kWatched;

  static void thread_main(void* queue);
  void end_inline_slowly(Status status);

  // With the lock held:
  bool running() const { return (state_.load(std::memory_order_relaxed) & kRunning) != 0; }
  bool done(uint64_t ticket) const;
  void append(Items& item);
  void run_front(Lock& lock, const Deadline& deadline = {});
  void finish(Status status);
  void settle();
  void notify();
  bool wake_thread();
  void hand_over(Lock& lock);

  std::atomic<uint64_t> state_{0};
  std::atomic<uint32_t> done_word_{0};  // threads that wait for the stream sleep on it
  std::atomic<uint32_t> work_word_{0};  // the stream's thread sleeps on it
  std::atomic<uint32_t> thread_ended_{0};

  std::mutex mutex_;  // guards the members below
  Items items_;
  Status first_failure_;
  uint64_t watched_ = UINT64_MAX;  // the lowest ticket that a thread sleeps for
  Thread thread_;
  bool thread_asleep_ = false;
  std::atomic<bool> stop_ = false;          // set with the lock held
  std::shared_ptr<EventRecord> waits_for_;  // set while a wait is running that has not been dropped
  std::atomic<bool> stop_on_failure_ = false;
  std::atomic<bool> wait_ended_ = false;  // that wait must end early: it was dropped, or its thread must stop
  uint64_t dropped_ = 0;                  // dropped items, which count as done once the running item is done
  bool lost_by_fork_ = false;
  Items inherited_;  // in a forked child: what the parent had queued
};

// Waits for a record. If its queue has stopped, runs the items before it. False if the deadline passed first, or if
// `given_up` became true.
bool wait_for(EventRecord& record, const Deadline& deadline, const std::atomic<bool>* given_up = nullptr);

}  // namespace descend::detail
