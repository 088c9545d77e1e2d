#include "runtime/stream_queue.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace descend::detail {

using std::chrono::steady_clock;

namespace {

// The queues whose tasks the thread runs now, the innermost first: a task that waits for another stream runs tasks of
// that one.
class RunningHere {
 public:
  explicit RunningHere(const StreamQueue* queue) : queue_(queue) { innermost_ = this; }
  ~RunningHere() { innermost_ = outer_; }
  RunningHere(const RunningHere&) = delete;
  RunningHere& operator=(const RunningHere&) = delete;

  static bool includes(const StreamQueue* queue) {
    const RunningHere* at = innermost_;
    while (at != nullptr && at->queue_ != queue) at = at->outer_;
    return at != nullptr;
  }

 private:
  static thread_local const RunningHere* innermost_;
  const StreamQueue* const queue_;
  const RunningHere* const outer_ = innermost_;
};

thread_local const RunningHere* RunningHere::innermost_ = nullptr;

}  // namespace

bool StreamQueue::runs_here() const { return RunningHere::includes(this); }

bool StreamQueue::done(uint64_t ticket) const {
  const uint64_t now = state_.load(std::memory_order_acquire);
  return now / kTicket >= ticket || (now & kBusy) == 0;
}

void StreamQueue::append(Items& item) {
  items_.splice(items_.end(), item);
  state_.fetch_or(kQueued);
}

// Runs the front item, a task or a wait, while no other thread runs one. A wait that ends early goes back to the front.
void StreamQueue::run_front(Lock& lock, const Deadline& deadline) {
  Items taken;
  taken.splice(taken.end(), items_, items_.begin());
  state_.fetch_or(kRunning);
  if (items_.empty()) state_.fetch_and(~kQueued);
  waits_for_ = taken.front().record;
  wait_ended_ = false;
  const bool own_thread = thread_.is_current();
  const bool skipped = stop_on_failure_ && !first_failure_.ok();
  lock.unlock();
  Status status;
  if (const Item& item = taken.front(); item.kind == Kind::kTask) {
    if (!skipped) {
      const RunningHere here(this);
      status = guarded(item.task.run);
    }
    taken.clear();
  } else {
    const Deadline limit = deadline_after(item.limit);
    const Deadline first = limit && (!deadline || *limit < *deadline) ? limit : deadline;
    if (own_thread) {  // at the exit it must end, not run another stream's items
      item.record->wait(first, [&] { return wait_ended_.load(); });
    } else {
      wait_for(*item.record, first, &wait_ended_);
    }
    if (!item.record->complete() && limit && !wait_ended_ && steady_clock::now() >= *limit) {
      status = failure(Code::kRuntimeError, "A wait on the stream has lasted for its limit of ",
                       std::chrono::duration<double>(*item.limit).count(), " s.");
    }
    if (item.record->complete() || !status.ok()) taken.clear();
  }
  lock.lock();
  if (waits_for_ != nullptr && !taken.empty()) {
    items_.splice(items_.begin(), taken);
    state_.fetch_or(kQueued);
    state_.fetch_and(~kRunning, std::memory_order_release);
    waits_for_.reset();
    return;
  }
  waits_for_.reset();
  finish(std::move(status));
}

// Marks the running item as done.
void StreamQueue::finish(Status status) {
  if (!running()) return;  // the task forked, and this is the child
  if (!status.ok() && first_failure_.ok()) {
    first_failure_ = std::move(status);
    state_.fetch_or(kFailed);
  }
  state_.fetch_add((1 + std::exchange(dropped_, 0)) * kTicket - kRunning, std::memory_order_release);
  if (items_.empty()) state_.fetch_and(~kQueued, std::memory_order_release);
  settle();
}

// Removes completed items from the front and wakes the threads that wait for them.
void StreamQueue::settle() {
  while (!items_.empty() && !running()) {
    const Item& front = items_.front();
    if (front.kind == Kind::kTask || (front.kind == Kind::kWait && !front.record->complete())) break;
    if (front.kind == Kind::kRecord) front.record->set_complete();
    items_.pop_front();
    state_.fetch_add(kTicket, std::memory_order_release);
    if (items_.empty()) state_.fetch_and(~kQueued, std::memory_order_release);
  }
  notify();
}

void StreamQueue::notify() {
  if ((state_.load(std::memory_order_relaxed) & kWatched) == 0 || !done(watched_)) return;
  watched_ = UINT64_MAX;
  state_.fetch_and(~kWatched, std::memory_order_release);
  done_word_.fetch_add(1);
  futex_wake(done_word_, kWakeAll);
}

// Wakes the stream's thread, or starts it. False if there is none and the system gives none.
bool StreamQueue::wake_thread() {
  if (!thread_.started()) {
    if (!thread_.start("descend-stream", thread_main, this)) return false;
  } else if (thread_asleep_) {
    thread_asleep_ = false;
    work_word_.fetch_add(1);
    futex_wake(work_word_, 1);
  }
  return true;
}

// Called if the caller does not run the queue: makes sure that the stream's thread or a waiting thread does.
void StreamQueue::hand_over(Lock& lock) {
  settle();
  if (items_.empty() || running()) return;
  if (stop_) {
    done_word_.fetch_add(1);
    futex_wake(done_word_, kWakeAll);
    return;
  }
  if (wake_thread()) return;
  while (!items_.empty() && !running()) run_front(lock);
}

void StreamQueue::thread_main(void* pointer) {
  StreamQueue* const queue = static_cast<StreamQueue*>(pointer);
  Lock lock(queue->mutex_);
  while (!queue->stop_) {
    queue->settle();
    if (!queue->items_.empty() && !queue->running()) {
      queue->run_front(lock);
      continue;
    }
    queue->thread_asleep_ = true;
    const uint32_t seen = queue->work_word_.load();
    lock.unlock();
    futex_wait(queue->work_word_, seen);
    lock.lock();
    queue->thread_asleep_ = false;
  }
  queue->hand_over(lock);
  lock.unlock();
  queue->thread_ended_.store(1);
  futex_wake(queue->thread_ended_, kWakeAll);
}

void StreamQueue::end_inline_slowly(Status status) {
  Lock lock(mutex_);
  finish(std::move(status));
  hand_over(lock);
}

void StreamQueue::enqueue(Item item) {
  Items node;
  node.push_back(std::move(item));
  Lock lock(mutex_);
  append(node);
  if (!running()) hand_over(lock);
}

void StreamQueue::drop_pending() {
  Items dropped;  // destroyed without the lock
  Lock lock(mutex_);
  for (auto next = items_.begin(); next != items_.end();) {
    const auto item = next++;
    if (item->kind != Kind::kRecord) dropped.splice(dropped.end(), items_, item);
  }
  dropped_ += dropped.size();
  if (const auto dropped_wait = std::exchange(waits_for_, nullptr)) {
    wait_ended_ = true;
    dropped_wait->nudge();
  }
  if (!running()) {
    state_.fetch_add(std::exchange(dropped_, 0) * kTicket, std::memory_order_release);
    if (items_.empty()) state_.fetch_and(~kQueued, std::memory_order_release);
  }
  settle();
  lock.unlock();
}

bool StreamQueue::drain(const Deadline& deadline, bool any_size, const EventRecord* last) {
  Lock lock(mutex_);
  if (last != nullptr && last->complete()) return true;
  const uint64_t begun = state_.load(std::memory_order_acquire);
  uint64_t queued = items_.size();
  if (last != nullptr) {
    const auto found = std::find_if(items_.begin(), items_.end(), [&](const Item& item) {
      return item.kind == Kind::kRecord && item.record.get() == last;
    });
    queued = static_cast<uint64_t>(std::distance(items_.begin(), found)) + 1;
  }
  const uint64_t target = begun / kTicket + ((begun & kRunning) != 0 ? 1 : 0) + dropped_ + queued;
  bool in_time = true;
  for (;;) {
    settle();
    if (done(target)) break;
    if (deadline && steady_clock::now() >= *deadline) {
      in_time = false;
      break;
    }
    if (!deadline && runs_here()) throw WaitsForItself();
    if (!running() && !items_.empty()) {
      // While the stream has a thread, that thread does the waits, so that this one can keep its deadline.
      const Item& front = items_.front();
      if (stop_ || (front.kind == Kind::kTask && (any_size || front.task.bytes <= kSmallTask))) {
        run_front(lock, deadline);
        continue;
      }
      hand_over(lock);
    }
    watched_ = std::min(watched_, target);
    state_.fetch_or(kWatched);
    if (done(target)) continue;  // settle() takes the flag back
    const uint32_t seen = done_word_.load();
    lock.unlock();
    futex_wait_until(done_word_, seen, deadline);
    lock.lock();
  }
  hand_over(lock);
  return in_time;
}

Status StreamQueue::take_failure() {
  Items garbage;
  Lock lock(mutex_);
  state_.fetch_and(~kFailed);
  Status status = std::exchange(first_failure_, Status{});
  if (std::exchange(lost_by_fork_, false) && status.ok()) {
    status = failure(Code::kRuntimeError,
                     "The process was forked while the stream had work in flight; that work goes on "
                     "in the parent, and is lost in the child.");
  }
  garbage.swap(inherited_);
  lock.unlock();
  return status;
}

uint64_t StreamQueue::tasks_left() {
  Lock lock(mutex_);
  return items_.size() + (running() ? 1 : 0);
}

void StreamQueue::ask_to_stop() {
  Lock lock(mutex_);
  stop_ = true;
  for (const Item& item : items_) {
    if (item.kind == Kind::kRecord) item.record->nudge();
  }
  if (waits_for_ != nullptr) {
    wait_ended_ = true;
    waits_for_->nudge();
  }
  work_word_.fetch_add(1);
  futex_wake(work_word_, 1);
}

void StreamQueue::step() {
  Lock lock(mutex_);
  settle();
  if (!stop_ || items_.empty() || running()) return;
  if (const Item& front = items_.front(); front.kind == Kind::kWait) {
    const auto other = front.record->stream();
    lock.unlock();
    if (other != nullptr) other->step();
    return;
  }
  run_front(lock);
  hand_over(lock);
}

bool StreamQueue::join_thread(const Deadline& deadline) {
  {
    Lock lock(mutex_);
    if (!thread_.started()) return true;
  }
  while (thread_ended_.load() == 0) {
    if (deadline && steady_clock::now() >= *deadline) return false;
    futex_wait_until(thread_ended_, 0, deadline);
  }
  Lock lock(mutex_);  // the exit may come while a stream is being destroyed
  thread_.join();
  return true;
}

void StreamQueue::forget_parent() {
  const uint64_t now = state_.load();
  const uint64_t lost = items_.size() + dropped_ + ((now & kRunning) != 0 ? 1 : 0);
  for (const Item& item : items_) {
    if (item.kind == Kind::kRecord) item.record->set_complete(false);
  }
  inherited_.splice(inherited_.end(), items_);
  dropped_ = 0;
  lost_by_fork_ = lost_by_fork_ || lost != 0;
  state_.store((now / kTicket + lost) * kTicket | (lost != 0 ? kFailed : now & kFailed));
  watched_ = UINT64_MAX;
  thread_.forget();
  thread_asleep_ = false;
}

bool wait_for(EventRecord& record, const Deadline& deadline, const std::atomic<bool>* given_up) {
  const auto stream = record.stream();
  const auto ended = [&] { return given_up != nullptr && *given_up; };
  const auto left = [&] { return stream != nullptr && stream->stopped(); };
  if (record.wait(deadline, [&] { return ended() || left(); })) return true;
  return !ended() && left() && stream->drain(deadline, true, &record);
}

}  // namespace descend::detail
