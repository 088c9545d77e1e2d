#include "runtime/stream.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/event_record.h"
#include "runtime/immortal.h"
#include "runtime/stream_queue.h"

namespace descend {
namespace {

using detail::EventRecord;
using detail::StreamQueue;
using std::chrono::nanoseconds;

constexpr auto kExitPatience = std::chrono::seconds(5);

struct LiveStreams {
  std::mutex mutex;
  std::vector<std::shared_ptr<StreamQueue>> queues;
  std::atomic<size_t> count{0};
  bool exiting = false;
  std::vector<std::shared_ptr<StreamQueue>> abandoned;  // their threads did not end in time at the exit
};

Immortal<LiveStreams> live;

// All locks are held across a fork, so that the child finds every queue whole. No thread ever holds two of them.
[[maybe_unused]] const int fork_handlers = pthread_atfork(
    [] {
      live->mutex.lock();
      for (const auto& queue : live->queues) queue->lock_for_fork();
    },
    [] {
      for (const auto& queue : live->queues) queue->unlock_after_fork();
      live->mutex.unlock();
    },
    [] {
      for (const auto& queue : live->queues) {
        queue->forget_parent();
        queue->unlock_after_fork();
      }
      live->mutex.unlock();
    });

std::vector<std::shared_ptr<StreamQueue>> snapshot() {
  std::lock_guard lock(live->mutex);
  return live->queues;
}

// Stops the threads while everything that their tasks may use still exists.
void stop_streams() {
  {
    std::lock_guard lock(live->mutex);
    live->exiting = true;
  }
  const auto queues = snapshot();
  for (const auto& queue : queues) queue->ask_to_stop();
  const Deadline deadline = deadline_after(kExitPatience);
  for (const auto& queue : queues) queue->join_thread(deadline);
}

}  // namespace

Stream::Stream(int32_t group) : queue_(std::make_shared<StreamQueue>(group)) {
  std::lock_guard lock(live->mutex);
  static const bool registered = std::atexit(stop_streams) == 0;
  (void)registered;
  if (live->exiting) queue_->ask_to_stop();
  queue_->place = live->queues.size();
  live->queues.push_back(queue_);
  live->count.store(live->queues.size(), std::memory_order_release);
}

Stream::~Stream() {
  bool exiting;
  {
    std::lock_guard lock(live->mutex);
    exiting = live->exiting;
  }
  // At the exit no items are run any more, and a thread that did not end is not waited for again.
  if (exiting) {
    queue_->drop_pending();
  } else {
    queue_->drain(std::nullopt, true);
  }
  queue_->ask_to_stop();
  const bool ended = queue_->join_thread(exiting ? deadline_after(nanoseconds(0)) : Deadline());

  std::lock_guard lock(live->mutex);
  if (!ended) live->abandoned.push_back(queue_);
  const size_t place = queue_->place;
  live->queues[place].swap(live->queues.back());
  live->queues[place]->place = place;
  live->queues.pop_back();
  live->count.store(live->queues.size(), std::memory_order_release);
}

void Stream::submit(Task task) {
  if (begin_inline(task.bytes)) {
    Status status = detail::guarded(task.run);
    task.run = nullptr;
    queue_->end_inline(std::move(status));
    return;
  }
  StreamQueue::Item item;
  item.task = std::move(task);
  queue_->enqueue(std::move(item));
}

bool Stream::begin_inline(int64_t bytes) { return bytes <= kInlineBytes && queue_->begin_inline(); }
void Stream::end_inline(Status status) { queue_->end_inline(std::move(status)); }

Status Stream::synchronize(std::optional<nanoseconds> timeout) {
  if (queue_->idle_and_well()) return {};
  const Deadline deadline = deadline_after(timeout);
  if (!queue_->drain(deadline, !deadline)) {
    const double ms = std::chrono::duration<double, std::milli>(*timeout).count();
    return failure(Code::kStreamSyncTimeout, "The stream is not done after ", ms, " ms: ", queue_->tasks_left(),
                   " of its tasks are left.");
  }
  return queue_->take_failure();
}

bool Stream::drain(std::optional<nanoseconds> timeout) {
  const Deadline deadline = deadline_after(timeout);
  return queue_->idle() || queue_->drain(deadline, !deadline);
}

Status Stream::take_failure() { return queue_->take_failure(); }

void Stream::set_stop_on_failure(bool stop) { queue_->set_stop_on_failure(stop); }

bool Stream::idle() const {
  if (!queue_->idle() && queue_->stopped()) queue_->step();
  return queue_->idle();
}
bool Stream::runs_here() const { return queue_->runs_here(); }
void Stream::drop_pending() { queue_->drop_pending(); }

void Stream::record(const std::shared_ptr<Event>& event, std::function<void()> then) {
  const auto record = std::make_shared<EventRecord>(queue_, std::move(then));
  if (queue_->idle()) {
    record->set_complete();
  } else {
    StreamQueue::Item item;
    item.kind = StreamQueue::Kind::kRecord;
    item.record = record;
    queue_->enqueue(std::move(item));
  }
  // Only from here on can a stream wait for this record. A wait is never queued before its record, so there are no
  // deadlocks among streams.
  event->set_latest(record);
}

void Stream::wait(const std::shared_ptr<Event>& event, std::optional<nanoseconds> limit) {
  const auto record = event->latest();
  if (!record || record->complete()) return;
  StreamQueue::Item item;
  item.kind = StreamQueue::Kind::kWait;
  item.record = record;
  item.limit = limit;
  item.token = event->waits_;
  queue_->enqueue(std::move(item));
}

void Stream::wait(const Latch& latch) {
  StreamQueue::Item item;
  item.kind = StreamQueue::Kind::kWait;
  item.record = latch.record_;
  queue_->enqueue(std::move(item));
}

void Stream::wait_until(std::function<bool()> holds, std::optional<nanoseconds> limit) {
  StreamQueue::Item item;
  item.kind = StreamQueue::Kind::kWait;
  item.record = std::make_shared<EventRecord>(std::move(holds));
  item.limit = limit;
  queue_->enqueue(std::move(item));
}

bool wait_for_all_streams(std::optional<nanoseconds> timeout, std::optional<int32_t> group) {
  if (live->count.load(std::memory_order_acquire) == 0) return true;
  const auto left_out = [&](const auto& queue) { return group && queue->group != *group; };
  {
    std::lock_guard lock(live->mutex);
    const bool idle = std::all_of(live->queues.begin(), live->queues.end(),
                                  [&](const auto& queue) { return left_out(queue) || queue->idle(); });
    if (idle) return true;
  }
  const Deadline deadline = deadline_after(timeout);
  const auto queues = snapshot();
  return std::all_of(queues.begin(), queues.end(),
                     [&](const auto& queue) { return left_out(queue) || queue->drain(deadline, !deadline); });
}

}  // namespace descend
