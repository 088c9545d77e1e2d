// Events of several processes.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "capi_runtime.h"
#include "in_child.h"

namespace {

bool is_complete(aclrtEvent event) {
  aclrtEventRecordedStatus status;
  CHECK(aclrtQueryEventStatus(event, &status) == 0);
  return status == ACL_EVENT_RECORDED_STATUS_COMPLETE;
}

}  // namespace

TEST_CASE("an event of two processes" * FORKS) {
  const Runtime runtime;
  aclrtStream stream = nullptr;
  aclrtEvent event = nullptr;
  aclrtIpcEventHandle handle = {};
  alignas(8) uint64_t word = 0;
  int pipes[2];
  REQUIRE(pipe(pipes) == 0);
  REQUIRE(aclrtCreateStream(&stream) == 0);
  REQUIRE(aclrtCreateEventExWithFlag(&event, ACL_EVENT_IPC) == 0);
  REQUIRE(aclrtIpcGetEventHandle(event, &handle) == 0);
  CHECK_FALSE(is_complete(event));  // never recorded
  CHECK(aclrtSynchronizeEvent(event) == 0);

  // The parent's stream waits for a number; the child sees the record, but not its end, tells it, and then waits.
  CHECK(aclrtValueWait(&word, 1, ACL_STREAM_WAIT_VALUE_EQ, stream) == 0);
  CHECK(aclrtRecordEvent(event, stream) == 0);
  CHECK_FALSE(is_complete(event));
  const pid_t child = fork_in_calm();
  if (child == 0) {
    alarm(30);
    aclrtEvent opened = nullptr;
    aclrtStream own = nullptr;
    char after = 0;
    aclrtEventRecordedStatus status = ACL_EVENT_RECORDED_STATUS_COMPLETE;
    bool right = aclrtIpcOpenEventHandle(handle, &opened) == 0 && aclrtCreateStream(&own) == 0 &&
                 aclrtQueryEventStatus(opened, &status) == 0 && status == ACL_EVENT_RECORDED_STATUS_NOT_READY &&
                 aclrtSynchronizeEventWithTimeout(opened, 10) == ACL_ERROR_RT_EVENT_SYNC_TIMEOUT &&
                 aclrtStreamWaitEvent(own, opened) == 0 && aclrtMemsetAsync(&after, 1, 1, 1, own) == 0 && after == 0;
    right = write(pipes[1], "x", 1) == 1 && right;
    right = right && aclrtSynchronizeStream(own) == 0 && after == 1 && aclrtSynchronizeEvent(opened) == 0 &&
            aclrtQueryEventStatus(opened, &status) == 0 && status == ACL_EVENT_RECORDED_STATUS_COMPLETE &&
            aclrtRecordEvent(opened, own) == 0 && aclrtDestroyEvent(opened) == 0;
    _exit(right ? 0 : 1);
  }
  char told = 0;
  REQUIRE(read(pipes[0], &told, 1) == 1);
  CHECK_FALSE(is_complete(event));  // the fork has completed nothing
  CHECK(aclrtValueWrite(&word, 1, 0, nullptr) == 0);
  CHECK(aclrtSynchronizeEventWithTimeout(event, 10000) == 0);
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(is_complete(event));
  close(pipes[0]);
  close(pipes[1]);
  CHECK(aclrtDestroyEvent(event) == 0);
}

TEST_CASE("an event that is shared, in one process") {
  const Runtime runtime;
  aclrtEvent event = nullptr, opened = nullptr, plain = nullptr;
  aclrtIpcEventHandle handle = {}, wrong = {};
  REQUIRE(aclrtCreateEventExWithFlag(&event, ACL_EVENT_IPC) == 0);
  REQUIRE(aclrtCreateEvent(&plain) == 0);
  REQUIRE(aclrtIpcGetEventHandle(event, &handle) == 0);
  REQUIRE_MESSAGE(aclrtIpcOpenEventHandle(handle, &opened) == 0, sentence());
  CHECK(aclrtRecordEvent(event, nullptr) == 0);
  CHECK(aclrtSynchronizeEvent(opened) == 0);
  CHECK(is_complete(opened));
  CHECK(aclrtStreamWaitEvent(nullptr, opened) == 0);
  CHECK(aclrtSynchronizeStream(nullptr) == 0);
  uint64_t time = 0;
  float milliseconds = 0;
  aclrtEventWaitStatus waits;
  REFUSED(ACL_ERROR_FEATURE_UNSUPPORTED, "aclrtEventGetTimestamp", aclrtEventGetTimestamp(event, &time));
  REFUSED(ACL_ERROR_FEATURE_UNSUPPORTED, "aclrtEventElapsedTime", aclrtEventElapsedTime(&milliseconds, event, plain));
  REFUSED(ACL_ERROR_FEATURE_UNSUPPORTED, "aclrtResetEvent", aclrtResetEvent(opened, nullptr));
  REFUSED(ACL_ERROR_FEATURE_UNSUPPORTED, "aclrtQueryEventWaitStatus", aclrtQueryEventWaitStatus(event, &waits));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtIpcGetEventHandle", aclrtIpcGetEventHandle(plain, &handle));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtIpcGetEventHandle", aclrtIpcGetEventHandle(event, nullptr));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtIpcOpenEventHandle", aclrtIpcOpenEventHandle(wrong, &opened));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtIpcOpenEventHandle", aclrtIpcOpenEventHandle(handle, nullptr));
  CHECK(aclrtDestroyEvent(opened) == 0);
  CHECK(aclrtDestroyEvent(event) == 0);
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtIpcOpenEventHandle", aclrtIpcOpenEventHandle(handle, &opened));  // it is gone
  REFUSED(ACL_ERROR_INVALID_RESOURCE_HANDLE, "aclrtIpcGetEventHandle", aclrtIpcGetEventHandle(event, &handle));
}
