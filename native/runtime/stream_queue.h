// What is behind a Stream: the queue, who runs it, and who waits for it.
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
#include "runtime/stream.h"
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
    // Fails when somebody has queued something or begun to wait meanwhile.
    if (plain && state_.compare_exchange_strong(now, now - kRunning + kTicket, std::memory_order_release,
                                                std::memory_order_relaxed)) {
      return;
    }
    end_inline_slowly(std::move(status));
  }
  bool idle() const { return (state_.load(std::memory_order_acquire) & kBusy) == 0; }
  bool idle_and_well() const { return (state_.load(std::memory_order_acquire) & (kBusy | kFailed)) == 0; }

  void enqueue(Item item);
  void drop_pending();
  // Waits for all that is in the queue now, or for what is up to `last`; false if the deadline passed first. Helps with
  // tasks of any size, or small ones.
  bool drain(const Deadline& deadline, bool any_size, const EventRecord* last = nullptr);
  Status take_failure();
  void set_stop_on_failure(bool stop) { stop_on_failure_ = stop; }
  uint64_t tasks_left();

  // The thread ends after what it is running, and none is started again. What is left is for those who wait for it:
  // they run it, and in other stopped queues what it waits for.
  void ask_to_stop();
  bool stopped() const { return stop_; }
  bool join_thread(const Deadline& deadline);  // then; false if the deadline passed first
  void step();  // of a stopped queue's items, runs one that waits for nothing: whoever asks again and again gets there

  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }
  void forget_parent();  // in the child, before unlock_after_fork

  const int32_t group;
  size_t place = 0;  // in the list of live streams, whose lock guards it

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Items = std::list<Item>;  // splicing allocates nothing: not under the lock, not in a forked child

  // The state: how many items are done, and flags. While none of the first three is set, a small task needs nothing but
  // this word to run. All other changes are made under the mutex.
  static constexpr uint64_t kRunning = 1;  // one thread, and never two, is in a task
  static constexpr uint64_t kQueued = 2;   // the queue is not empty
  static constexpr uint64_t kWatched = 4;  // somebody sleeps until something is done
  static constexpr uint64_t kFailed = 8;   // a failure waits for synchronize
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
  std::atomic<uint32_t> done_word_{0};  // those who wait for the stream sleep on it
  std::atomic<uint32_t> work_word_{0};  // the stream's thread sleeps on it
  std::atomic<uint32_t> thread_ended_{0};

  std::mutex mutex_;  // for what follows
  Items items_;
  Status first_failure_;
  uint64_t watched_ = UINT64_MAX;  // the least ticket that somebody sleeps for
  Thread thread_;
  bool thread_asleep_ = false;
  std::atomic<bool> stop_ = false;          // set with the lock held
  std::shared_ptr<EventRecord> waits_for_;  // where what is running is a wait that has not been dropped
  std::atomic<bool> stop_on_failure_ = false;
  std::atomic<bool> wait_ended_ = false;  // too early: it was dropped, or its thread is to stop
  uint64_t dropped_ = 0;  // items taken out of the queue: they count as done once what is running is done
  bool lost_by_fork_ = false;
  Items inherited_;  // in a forked child: what the parent had queued
};

// Waits for a record, in a stopped queue by running what is before it. False if the deadline passed first, or
// `given_up`.
bool wait_for(EventRecord& record, const Deadline& deadline, const std::atomic<bool>* given_up = nullptr);

}  // namespace descend::detail
