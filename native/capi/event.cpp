// Events, within this process or shared with others.
#include "capi/event.h"

#include <chrono>
#include <cstring>

#include "acl/acl_rt.h"
#include "capi/settings.h"
#include "capi/stream.h"
#include "runtime/event_record.h"

namespace descend::capi {
namespace {

constexpr uint32_t kPlainFlags =
    ACL_EVENT_SYNC | ACL_EVENT_CAPTURE_STREAM_PROGRESS | ACL_EVENT_TIME_LINE | ACL_EVENT_EXTERNAL;

Status get_event(const void* handle, std::shared_ptr<ProgramEvent>* event) {
  if (auto found = state().events.find(handle)) {
    *event = std::move(*found);
    return {};
  }
  return stale("event");
}

// The same for functions that an event shared with other processes does not have.
Status get_own_event(const void* handle, std::shared_ptr<ProgramEvent>* event) {
  DESCEND_RETURN_IF_ERROR(get_event(handle, event));
  if ((*event)->shared == nullptr) return {};
  return {kFeatureUnsupported, "event is shared with other processes; this function is for events of one process."};
}

// The same for functions that read an event's time. In CANN an event has a time if it was created without flags, or
// with the flag for it.
Status get_timed_event(const void* handle, const char* name, std::shared_ptr<ProgramEvent>* event) {
  DESCEND_RETURN_IF_ERROR(get_own_event(handle, event));
  if ((*event)->timed) return {};
  return failure(Code::kInvalidParam, name, " was created without ACL_EVENT_TIME_LINE, so it has no time.");
}

Status create_event(aclrtEvent* event, uint32_t flag, uint32_t known) {
  if (event == nullptr) return null_argument("event");
  if ((flag & ~known) != 0) return failure(Code::kInvalidParam, "flag is ", flag, ", which has bits that are none.");
  auto made = std::make_shared<ProgramEvent>();
  made->timed = flag == 0 || (flag & ACL_EVENT_TIME_LINE) != 0;
  if ((flag & ACL_EVENT_IPC) != 0) {
    if (flag != ACL_EVENT_IPC) {
      return failure(Code::kInvalidParam, "flag is ", flag, ", but ACL_EVENT_IPC cannot be combined with other bits.");
    }
    DESCEND_RETURN_IF_ERROR(IpcEvent::create(&made->shared));
  }
  *event = state().events.insert(std::move(made));
  return {};
}

bool complete(const ProgramEvent& event) {
  if (event.shared == nullptr) return event.complete();
  const uint64_t number = event.shared->latest();
  return number > 0 && event.shared->complete(number);
}

bool wait(ProgramEvent& event, std::optional<std::chrono::nanoseconds> limit) {
  if (event.shared == nullptr) return event.wait(limit);
  return event.shared->wait(event.shared->latest(), deadline_after(limit));
}

Status query_event(aclrtEvent event, const void* status, bool* is_complete) {
  if (status == nullptr) return null_argument("status");
  std::shared_ptr<ProgramEvent> point;
  DESCEND_RETURN_IF_ERROR(get_event(event, &point));
  *is_complete = complete(*point);
  return {};
}

}  // namespace
}  // namespace descend::capi

using namespace descend;
using namespace descend::capi;

aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
  return runtime_call("aclrtStreamWaitEvent", [&]() -> Status {
    std::shared_ptr<Stream> found;
    std::shared_ptr<ProgramEvent> point;
    DESCEND_RETURN_IF_ERROR(get_stream(stream, &found));
    DESCEND_RETURN_IF_ERROR(get_event(event, &point));
    const auto limit = with_settings([](const Settings& now) { return now.wait_limit; });
    if (point->shared == nullptr) {
      found->wait(point, limit);
    } else if (const uint64_t number = point->shared->latest(); !point->shared->complete(number)) {
      found->wait_until([shared = point->shared, number] { return shared->complete(number); }, limit);
    }
    return {};
  });
}

aclError aclrtCreateEvent(aclrtEvent* event) {
  return runtime_call("aclrtCreateEvent", [&] { return create_event(event, 0, kPlainFlags); });
}

aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t flag) {
  return runtime_call("aclrtCreateEventWithFlag", [&] { return create_event(event, flag, kPlainFlags); });
}

// In CANN these events can be recorded again while others wait for them. Here all events can.
aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t flag) {
  return runtime_call("aclrtCreateEventExWithFlag",
                      [&] { return create_event(event, flag, kPlainFlags | ACL_EVENT_IPC); });
}

aclError aclrtDestroyEvent(aclrtEvent event) {
  return runtime_call("aclrtDestroyEvent", [&]() -> Status {
    if (event == nullptr || state().events.remove(event)) return {};
    return stale("event");
  });
}

aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream) {
  return runtime_call("aclrtRecordEvent", [&]() -> Status {
    std::shared_ptr<Stream> found;
    std::shared_ptr<ProgramEvent> point;
    DESCEND_RETURN_IF_ERROR(get_event(event, &point));
    DESCEND_RETURN_IF_ERROR(get_stream(stream, &found));
    if (point->shared == nullptr) {
      found->record(point);
    } else {
      const uint64_t number = point->shared->begin_record();
      found->record(point, [shared = point->shared, number] { shared->complete_record(number); });
    }
    return {};
  });
}

aclError aclrtResetEvent(aclrtEvent event, aclrtStream stream) {
  return runtime_call("aclrtResetEvent", [&]() -> Status {
    std::shared_ptr<Stream> found;
    std::shared_ptr<ProgramEvent> point;
    DESCEND_RETURN_IF_ERROR(get_own_event(event, &point));
    DESCEND_RETURN_IF_ERROR(get_stream(stream, &found));
    point->reset();  // waits already in a stream keep the record that they were given
    return {};
  });
}

aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus* status) {
  return runtime_call("aclrtQueryEventStatus", [&]() -> Status {
    bool complete = false;
    DESCEND_RETURN_IF_ERROR(query_event(event, status, &complete));
    *status = complete ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
    return {};
  });
}

aclError aclrtQueryEvent(aclrtEvent event, aclrtEventStatus* status) {
  return runtime_call("aclrtQueryEvent", [&]() -> Status {
    bool complete = false;
    DESCEND_RETURN_IF_ERROR(query_event(event, status, &complete));
    *status = complete ? ACL_EVENT_STATUS_COMPLETE : ACL_EVENT_STATUS_NOT_READY;
    return {};
  });
}

aclError aclrtQueryEventWaitStatus(aclrtEvent event, aclrtEventWaitStatus* status) {
  return runtime_call("aclrtQueryEventWaitStatus", [&]() -> Status {
    if (status == nullptr) return null_argument("status");
    std::shared_ptr<ProgramEvent> point;
    DESCEND_RETURN_IF_ERROR(get_own_event(event, &point));
    *status = point->waited_for() ? ACL_EVENT_WAIT_STATUS_NOT_READY : ACL_EVENT_WAIT_STATUS_COMPLETE;
    return {};
  });
}

aclError aclrtSynchronizeEvent(aclrtEvent event) {
  return runtime_call("aclrtSynchronizeEvent", [&]() -> Status {
    std::shared_ptr<ProgramEvent> point;
    DESCEND_RETURN_IF_ERROR(get_event(event, &point));
    (void)wait(*point, std::nullopt);
    return {};
  });
}

aclError aclrtSynchronizeEventWithTimeout(aclrtEvent event, int32_t timeout) {
  return runtime_call("aclrtSynchronizeEventWithTimeout", [&]() -> Status {
    std::shared_ptr<ProgramEvent> point;
    std::optional<std::chrono::nanoseconds> limit;
    DESCEND_RETURN_IF_ERROR(get_event(event, &point));
    DESCEND_RETURN_IF_ERROR(read_timeout(timeout, &limit));
    if (wait(*point, limit)) return {};
    return failure(Code::kEventSyncTimeout, "the event was not complete after ", timeout, " ms.");
  });
}

aclError aclrtEventElapsedTime(float* ms, aclrtEvent startEvent, aclrtEvent endEvent) {
  return runtime_call("aclrtEventElapsedTime", [&]() -> Status {
    if (ms == nullptr) return null_argument("ms");
    std::shared_ptr<ProgramEvent> start, end;
    DESCEND_RETURN_IF_ERROR(get_timed_event(startEvent, "startEvent", &start));
    DESCEND_RETURN_IF_ERROR(get_timed_event(endEvent, "endEvent", &end));
    const auto from = start->time(), to = end->time();
    if (!from || !to) {
      return failure(Code::kInvalidParam, from ? "endEvent" : "startEvent",
                     " has not been recorded, or is not complete.");
    }
    *ms = std::chrono::duration<float, std::milli>(*to - *from).count();
    return {};
  });
}

aclError aclrtEventGetTimestamp(aclrtEvent event, uint64_t* timestamp) {
  return runtime_call("aclrtEventGetTimestamp", [&]() -> Status {
    if (timestamp == nullptr) return null_argument("timestamp");
    std::shared_ptr<ProgramEvent> point;
    DESCEND_RETURN_IF_ERROR(get_timed_event(event, "event", &point));
    const auto time = point->time();
    if (!time) return failure(Code::kInvalidParam, "event has not been recorded, or is not complete.");
    const auto since_start = std::chrono::duration_cast<std::chrono::microseconds>(time->time_since_epoch());
    *timestamp = static_cast<uint64_t>(since_start.count());
    return {};
  });
}

aclError aclrtIpcGetEventHandle(aclrtEvent event, aclrtIpcEventHandle* handle) {
  return runtime_call("aclrtIpcGetEventHandle", [&]() -> Status {
    if (handle == nullptr) return null_argument("handle");
    std::shared_ptr<ProgramEvent> point;
    DESCEND_RETURN_IF_ERROR(get_event(event, &point));
    if (point->shared == nullptr) {
      return failure(Code::kInvalidParam, "event was not created with ACL_EVENT_IPC.");
    }
    const IpcHandle found = point->shared->handle();
    static_assert(sizeof(*handle) == sizeof(found));
    std::memcpy(handle->reserved, found.data(), found.size());
    return {};
  });
}

aclError aclrtIpcOpenEventHandle(aclrtIpcEventHandle handle, aclrtEvent* event) {
  return runtime_call("aclrtIpcOpenEventHandle", [&]() -> Status {
    if (event == nullptr) return null_argument("event");
    IpcHandle given;
    std::memcpy(given.data(), handle.reserved, given.size());
    auto opened = std::make_shared<ProgramEvent>();
    DESCEND_RETURN_IF_ERROR(IpcEvent::open(given, &opened->shared));
    *event = state().events.insert(std::move(opened));
    return {};
  });
}
