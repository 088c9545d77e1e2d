#include <pthread.h>

#include <mutex>
#include <utility>

#include "runtime/event_record.h"
#include "runtime/immortal.h"
#include "runtime/stream.h"
#include "runtime/stream_queue.h"

namespace descend {
namespace {

// One lock for all events. It is held only to copy a pointer, and one lock is easily kept safe across a fork.
Immortal<std::mutex> mutex;

[[maybe_unused]] const int fork_handlers =
    pthread_atfork([] { mutex->lock(); }, [] { mutex->unlock(); }, [] { mutex->unlock(); });

}  // namespace

Latch::Latch() : record_(std::make_shared<detail::EventRecord>(std::weak_ptr<detail::StreamQueue>())) {}
void Latch::open() { record_->set_complete(); }

Event::Event() = default;
Event::~Event() = default;

std::shared_ptr<detail::EventRecord> Event::latest() const {
  std::lock_guard lock(*mutex);
  return latest_;
}

void Event::set_latest(std::shared_ptr<detail::EventRecord> record) {
  std::lock_guard lock(*mutex);
  latest_.swap(record);
}

bool Event::complete() const {
  const auto record = latest();
  if (!record || record->complete()) return record != nullptr;
  if (const auto stream = record->stream(); stream && stream->stopped()) stream->step();
  return record->complete();
}

bool Event::wait(std::optional<std::chrono::nanoseconds> timeout) {
  const auto record = latest();
  if (!record || record->complete()) return true;
  const Deadline deadline = deadline_after(timeout);
  if (const auto stream = record->stream(); !deadline && stream && stream->runs_here()) throw WaitsForItself();
  return detail::wait_for(*record, deadline);
}

std::optional<std::chrono::steady_clock::time_point> Event::time() const {
  const auto record = latest();
  if (!record || !record->complete()) return std::nullopt;
  return record->time();
}

void Event::reset() { set_latest(nullptr); }

}  // namespace descend
