// Streams: callbacks, waits for a number in memory, modes after a failure.
#include <doctest/doctest.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "capi_runtime.h"
#include "in_child.h"

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

struct Stream {
  Stream() { REQUIRE(aclrtCreateStream(&handle) == 0); }
  ~Stream() { CHECK(aclrtDestroyStreamForce(handle) == 0); }
  operator aclrtStream() const { return handle; }
  aclrtStream handle = nullptr;
};

uint64_t self() { return static_cast<uint64_t>(pthread_self()); }

// Serves callbacks on a thread of its own until it is destroyed.
struct Server {
  Server() {
    thread = std::thread([this] {
      number = self();
      while (!stop) last = aclrtProcessReport(20);
    });
    while (number == 0) std::this_thread::yield();
  }
  ~Server() {
    stop = true;
    thread.join();
  }
  std::atomic<uint64_t> number{0};
  std::atomic<bool> stop{false};
  std::atomic<int> last{0};
  std::thread thread;
};

void add_one(void* counter) { ++*static_cast<std::atomic<int>*>(counter); }
void throw_it(void*) { throw std::runtime_error("so it is"); }
void throw_number(void*) { throw 7; }

bool idle(aclrtStream stream) {
  aclrtStreamStatus status;
  CHECK(aclrtStreamQuery(stream, &status) == 0);
  return status == ACL_STREAM_STATUS_COMPLETE;
}

}  // namespace

TEST_CASE("host functions run in the order of the stream, on no thread of the caller's") {
  const Runtime runtime;
  const Stream stream;
  struct Seen {
    std::atomic<int> count{0};
    std::vector<int> order;
    uint64_t thread = 0;
    char memory[64] = {};
  } seen;
  for (int i = 0; i < 10; ++i) {
    CHECK(aclrtMemsetAsync(seen.memory, 64, i, 64, stream) == 0);
    CHECK(aclrtLaunchHostFunc(
              stream,
              [](void* pointer) {
                auto& now = *static_cast<Seen*>(pointer);
                now.order.push_back(now.memory[63]);
                now.thread = self();
              },
              &seen) == 0);
  }
  while (!idle(stream)) std::this_thread::sleep_for(1ms);
  CHECK(aclrtSynchronizeStream(stream) == 0);
  CHECK(seen.order == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(seen.thread != self());
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtLaunchHostFunc", aclrtLaunchHostFunc(stream, nullptr, &seen));
  REFUSED(ACL_ERROR_INVALID_RESOURCE_HANDLE, "aclrtLaunchHostFunc", aclrtLaunchHostFunc(&seen, add_one, &seen));

  // An exception of a callback is reported once as the stream's failure, and the stream continues.
  for (const auto function : {throw_it, throw_number}) {
    CHECK(aclrtLaunchHostFunc(stream, function, nullptr) == 0);
    CHECK(aclrtLaunchHostFunc(stream, add_one, &seen.count) == 0);
    CHECK(aclrtSynchronizeStream(stream) == ACLNN_ERR_RUNTIME_ERROR);
    if (function == throw_it) CHECK_MESSAGE(sentence().find("so it is") != std::string::npos, sentence());
    CHECK(aclrtSynchronizeStream(stream) == 0);
  }
  CHECK(seen.count == 2);
}

TEST_CASE("a host function does not wait for its own stream") {
  const Runtime runtime;
  const Stream stream;
  struct Called {
    aclrtStream stream = nullptr;
    aclrtEvent later = nullptr;
    void* memory = nullptr;
    std::atomic<bool> go{false};
    std::vector<int> codes;
    std::string sentence;
  } called;
  called.stream = stream;
  REQUIRE(aclrtCreateEvent(&called.later) == 0);
  REQUIRE(aclrtMalloc(&called.memory, 64, ACL_MEM_MALLOC_HUGE_FIRST) == 0);
  CHECK(aclrtLaunchHostFunc(
            stream,
            [](void* pointer) {
              auto& now = *static_cast<Called*>(pointer);
              while (!now.go) std::this_thread::yield();
              now.codes = {aclrtSynchronizeStream(now.stream),
                           aclrtSynchronizeDevice(),
                           aclrtSynchronizeEvent(now.later),
                           aclrtDestroyStream(now.stream),
                           aclrtDestroyStreamForce(now.stream),
                           aclrtFree(now.memory),
                           aclrtResetDevice(0),
                           aclFinalize()};
              now.sentence = sentence();
              now.codes.push_back(aclrtSynchronizeStreamWithTimeout(now.stream, 1));
              // What the stream has done already, and what others do, may be waited for.
              const Stream other;
              std::atomic<int> count{0};
              now.codes.push_back(aclrtLaunchHostFunc(other, add_one, &count));
              now.codes.push_back(aclrtSynchronizeStream(other));
              now.codes.push_back(count - 1);
            },
            &called) == 0);
  CHECK(aclrtRecordEvent(called.later, stream) == 0);
  called.go = true;
  CHECK(aclrtSynchronizeStream(stream) == 0);
  constexpr int kRefused = ACL_ERROR_INTERNAL_ERROR;
  CHECK(called.codes == std::vector<int>{kRefused, kRefused, kRefused, kRefused, kRefused, kRefused, kRefused, kRefused,
                                         ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, 0, 0, 0});
  CHECK_MESSAGE(called.sentence.find("aclFinalize: the stream that runs this function") == 0, called.sentence);
  CHECK(aclrtFree(called.memory) == 0);  // nothing of what was refused was done
  CHECK(aclrtDestroyEvent(called.later) == 0);
}

TEST_CASE("callbacks run on the thread that is subscribed") {
  const Runtime runtime;
  const Stream stream, other;
  Server server;
  std::atomic<int> count{0};
  REFUSED(107015, "aclrtLaunchCallback", aclrtLaunchCallback(add_one, &count, ACL_CALLBACK_BLOCK, stream));
  CHECK(aclrtSubscribeReport(server.number, stream) == 0);
  CHECK(aclrtSubscribeReport(server.number, other) == 0);
  REFUSED(107011, "aclrtSubscribeReport", aclrtSubscribeReport(self(), stream));
  struct Seen {
    std::atomic<uint64_t> thread{0};
    char memory[64] = {};
    std::atomic<int> byte{-1};
  } seen;
  CHECK(aclrtMemsetAsync(seen.memory, 64, 1, 64, stream) == 0);
  CHECK(aclrtLaunchCallback(
            [](void* pointer) {
              auto& now = *static_cast<Seen*>(pointer);
              std::this_thread::sleep_for(20ms);
              now.thread = self();
              now.byte = now.memory[63];
            },
            &seen, ACL_CALLBACK_BLOCK, stream) == 0);
  CHECK(aclrtMemsetAsync(seen.memory, 64, 2, 64, stream) == 0);  // waits for it
  CHECK(aclrtSynchronizeStream(stream) == 0);
  CHECK(seen.thread == server.number);
  CHECK(seen.byte == 1);
  CHECK(seen.memory[63] == 2);

  for (int i = 0; i < 50; ++i) {
    CHECK(aclrtLaunchCallback(add_one, &count, i % 2 ? ACL_CALLBACK_BLOCK : ACL_CALLBACK_NO_BLOCK,
                              i % 3 ? stream : other) == 0);
  }
  CHECK(aclrtSynchronizeStream(stream) == 0);
  CHECK(aclrtSynchronizeStream(other) == 0);
  while (count < 50) std::this_thread::yield();

  REFUSED(107012, "aclrtUnSubscribeReport", aclrtUnSubscribeReport(server.number + 1, stream));
  CHECK(aclrtUnSubscribeReport(server.number, stream) == 0);
  REFUSED(107011, "aclrtUnSubscribeReport", aclrtUnSubscribeReport(server.number, stream));
  REFUSED(107015, "aclrtLaunchCallback", aclrtLaunchCallback(add_one, &count, ACL_CALLBACK_BLOCK, stream));
  CHECK(aclrtLaunchCallback(add_one, &count, ACL_CALLBACK_BLOCK, other) == 0);
  CHECK(aclrtSynchronizeStream(other) == 0);
  CHECK(count == 51);
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtLaunchCallback",
          aclrtLaunchCallback(nullptr, nullptr, ACL_CALLBACK_BLOCK, other));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtLaunchCallback",
          aclrtLaunchCallback(add_one, &count, static_cast<aclrtCallbackBlockType>(2), other));
}

TEST_CASE("one thread launches and serves") {
  const Runtime runtime;
  const Stream stream;
  std::atomic<int> count{0};
  CHECK(aclrtSubscribeReport(self(), stream) == 0);
  for (const auto blocks : {ACL_CALLBACK_BLOCK, ACL_CALLBACK_NO_BLOCK}) {
    CHECK(aclrtLaunchCallback(add_one, &count, blocks, stream) == 0);
    CHECK(aclrtProcessReport(-1) == 0);
  }
  CHECK(count == 2);
  CHECK(aclrtSynchronizeStream(stream) == 0);
  CHECK(aclrtUnSubscribeReport(self(), stream) == 0);
}

TEST_CASE("waiting for callbacks takes its time") {
  const Runtime runtime;
  const Stream stream;
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtProcessReport", aclrtProcessReport(0));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtProcessReport", aclrtProcessReport(-2));
  const auto begin = Clock::now();
  REFUSED(107012, "aclrtProcessReport", aclrtProcessReport(30));  // not subscribed
  CHECK(Clock::now() - begin >= 30ms);
  CHECK(aclrtSubscribeReport(self(), stream) == 0);
  const auto again = Clock::now();
  REFUSED(507012, "aclrtProcessReport", aclrtProcessReport(30));
  CHECK(Clock::now() - again >= 30ms);
}

TEST_CASE("a callback that throws is told to both") {
  const Runtime runtime;
  const Stream stream;
  std::atomic<int> count{0};
  CHECK(aclrtSubscribeReport(self(), stream) == 0);
  for (const auto function : {throw_it, throw_number}) {
    CHECK(aclrtLaunchCallback(function, nullptr, ACL_CALLBACK_BLOCK, stream) == 0);
    CHECK(aclrtLaunchCallback(add_one, &count, ACL_CALLBACK_BLOCK, stream) == 0);
    REFUSED(ACL_ERROR_INTERNAL_ERROR, "aclrtProcessReport", aclrtProcessReport(1000));
    CHECK(aclrtProcessReport(1000) == 0);
    CHECK(aclrtSynchronizeStream(stream) == ACLNN_ERR_RUNTIME_ERROR);
    CHECK_MESSAGE(sentence().find("callback threw an exception") != std::string::npos, sentence());
    CHECK(aclrtSynchronizeStream(stream) == 0);
  }
  CHECK(count == 2);
}

TEST_CASE("a callback that ends its thread") {
  const Runtime runtime;
  const Stream stream;
  std::atomic<uint64_t> number{0};
  std::thread thread([&] {
    number = self();
    (void)aclrtProcessReport(-1);
    std::abort();  // not reached
  });
  while (number == 0) std::this_thread::yield();
  CHECK(aclrtSubscribeReport(number, stream) == 0);
  CHECK(aclrtLaunchCallback([](void*) { pthread_exit(nullptr); }, nullptr, ACL_CALLBACK_BLOCK, stream) == 0);
  thread.join();
  CHECK(aclrtSynchronizeStream(stream) == ACLNN_ERR_RUNTIME_ERROR);  // it is let go
}

TEST_CASE("callbacks that nobody calls any more") {
  std::atomic<int> count{0};
  {
    const Runtime runtime;
    const Stream stream;
    CHECK(aclrtSubscribeReport(self(), stream) == 0);
    for (int i = 0; i < 2; ++i) CHECK(aclrtLaunchCallback(add_one, &count, ACL_CALLBACK_BLOCK, stream) == 0);
    CHECK(aclrtUnSubscribeReport(self(), stream) == 0);
    CHECK(aclrtSynchronizeStream(stream) == ACLNN_ERR_RUNTIME_ERROR);
    CHECK_MESSAGE(sentence().find("no longer subscribed") != std::string::npos, sentence());
    CHECK(aclrtSubscribeReport(self(), stream) == 0);  // again
    CHECK(aclrtUnSubscribeReport(self(), stream) == 0);
  }
  REQUIRE(aclInit(nullptr) == 0);
  aclrtStream stream = nullptr;
  REQUIRE(aclrtCreateStream(&stream) == 0);
  CHECK(aclrtSubscribeReport(self(), stream) == 0);
  for (int i = 0; i < 2; ++i) CHECK(aclrtLaunchCallback(add_one, &count, ACL_CALLBACK_BLOCK, stream) == 0);
  std::thread waiting([] { (void)aclrtProcessReport(-1); });
  CHECK(aclFinalize() == 0);  // waits for none of them
  waiting.join();
  CHECK(count == 0);
  REFUSED(ACL_ERROR_UNINITIALIZE, "aclrtProcessReport", aclrtProcessReport(1));
}

TEST_CASE("a forked child has no subscriptions" * FORKS) {
  const Runtime runtime;
  const Stream stream;
  CHECK(aclrtSubscribeReport(self(), stream) == 0);
  std::atomic<int> count{0};
  CHECK(aclrtLaunchCallback(add_one, &count, ACL_CALLBACK_BLOCK, stream) == 0);
  CHECK(in_child([&] {
          return aclrtLaunchCallback(add_one, &count, ACL_CALLBACK_BLOCK, stream) == 107015 &&
                 aclrtProcessReport(10) == 107012 && aclrtSynchronizeStream(stream) != 0 &&
                 aclrtSubscribeReport(self(), stream) == 0 &&
                 aclrtLaunchCallback(add_one, &count, ACL_CALLBACK_NO_BLOCK, stream) == 0 &&
                 aclrtProcessReport(1000) == 0 && count == 1 && aclrtSynchronizeStream(stream) == 0;
        }) == 0);
  CHECK(aclrtProcessReport(1000) == 0);
  CHECK(aclrtSynchronizeStream(stream) == 0);
  CHECK(count == 1);
}

TEST_CASE("streams write numbers to memory and wait for them") {
  const Runtime runtime;
  const Stream writer, waiter;
  alignas(8) uint64_t word = 0;
  struct Case {
    uint32_t flag;
    uint64_t before, value, enough;
  };
  const Case cases[] = {
      {ACL_STREAM_WAIT_VALUE_EQ, 0, 5, 5},
      {ACL_STREAM_WAIT_VALUE_GEQ, 4, 5, 6},
      {ACL_STREAM_WAIT_VALUE_GEQ, UINT64_MAX - 1, UINT64_MAX, 3},  // goes round
      {ACL_STREAM_WAIT_VALUE_AND, 0b0101, 0b1010, 0b1000},
      {ACL_STREAM_WAIT_VALUE_NOR, ~uint64_t{8}, 8, 16},
  };
  for (const Case& one : cases) {
    CAPTURE(one.flag);
    char after = 0;
    CHECK(aclrtValueWrite(&word, one.before, 0, waiter) == 0);
    CHECK(aclrtValueWait(&word, one.value, one.flag, waiter) == 0);
    CHECK(aclrtMemsetAsync(&after, 1, 1, 1, waiter) == 0);
    CHECK(aclrtSynchronizeStreamWithTimeout(waiter, 20) == ACL_ERROR_RT_STREAM_SYNC_TIMEOUT);
    CHECK_FALSE(idle(waiter));
    CHECK(after == 0);
    CHECK(aclrtValueWrite(&word, one.enough, 0, writer) == 0);
    CHECK(aclrtSynchronizeStream(waiter) == 0);
    CHECK(after == 1);
  }
  CHECK(aclrtValueWait(&word, 16, ACL_STREAM_WAIT_VALUE_EQ, waiter) == 0);  // holds already
  CHECK(aclrtSynchronizeStream(waiter) == 0);
  // A wait that never ends is dropped with its stream.
  aclrtStream stuck = nullptr;
  CHECK(aclrtCreateStream(&stuck) == 0);
  CHECK(aclrtValueWait(&word, 99, ACL_STREAM_WAIT_VALUE_EQ, stuck) == 0);
  CHECK(aclrtDestroyStreamForce(stuck) == 0);
  char* const odd = reinterpret_cast<char*>(&word) + 4;
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtValueWrite", aclrtValueWrite(odd, 1, 0, writer));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtValueWait", aclrtValueWait(odd, 1, 1, writer));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtValueWrite", aclrtValueWrite(nullptr, 1, 0, writer));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtValueWrite", aclrtValueWrite(&word, 1, 1, writer));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtValueWait", aclrtValueWait(&word, 1, 4, writer));
  REFUSED(ACL_ERROR_INVALID_RESOURCE_HANDLE, "aclrtValueWait", aclrtValueWait(&word, 1, 1, stuck));
}

TEST_CASE("waits for an event are counted, and end at their limit") {
  const Runtime runtime;
  const Stream first, second;
  alignas(8) uint64_t word = 0;
  aclrtEvent event = nullptr;
  CHECK(aclrtCreateEvent(&event) == 0);
  aclrtEventWaitStatus status = ACL_EVENT_WAIT_STATUS_RESERVED;
  const auto waits = [&] {
    CHECK(aclrtQueryEventWaitStatus(event, &status) == 0);
    return status == ACL_EVENT_WAIT_STATUS_NOT_READY;
  };
  CHECK_FALSE(waits());
  CHECK(aclrtValueWait(&word, 1, ACL_STREAM_WAIT_VALUE_EQ, first) == 0);
  CHECK(aclrtRecordEvent(event, first) == 0);
  CHECK_FALSE(waits());
  CHECK(aclrtStreamWaitEvent(second, event) == 0);
  CHECK(waits());
  CHECK(aclrtSetOpWaitTimeout(1) == 0);
  const auto begin = Clock::now();
  const Stream third;
  CHECK(aclrtStreamWaitEvent(third, event) == 0);
  CHECK(aclrtSynchronizeStream(third) == ACLNN_ERR_RUNTIME_ERROR);
  CHECK_MESSAGE(sentence().find("its limit of 1 s") != std::string::npos, sentence());
  CHECK(Clock::now() - begin >= 1s);
  CHECK(aclrtSynchronizeStream(third) == 0);
  CHECK(waits());  // the second still does, which has no limit
  CHECK(aclrtSetOpWaitTimeout(0) == 0);
  CHECK(aclrtValueWrite(&word, 1, 0, third) == 0);
  CHECK(aclrtSynchronizeStream(second) == 0);
  CHECK_FALSE(waits());
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtQueryEventWaitStatus", aclrtQueryEventWaitStatus(event, nullptr));
  REFUSED(ACL_ERROR_INVALID_RESOURCE_HANDLE, "aclrtQueryEventWaitStatus", aclrtQueryEventWaitStatus(&word, &status));
  CHECK(aclrtDestroyEvent(event) == 0);
}

TEST_CASE("after a failure a stream goes on, or drops what follows until it has been told") {
  const Runtime runtime;
  const Stream stream;
  std::atomic<int> count{0};
  char small = 0;
  for (const uint64_t mode : {ACL_CONTINUE_ON_FAILURE, ACL_STOP_ON_FAILURE, ACL_CONTINUE_ON_FAILURE}) {
    CHECK(aclrtSetStreamFailureMode(stream, mode) == 0);
    aclrtStreamAttrValue value = {};
    CHECK(aclrtGetStreamAttribute(stream, ACL_STREAM_ATTR_FAILURE_MODE, &value) == 0);
    CHECK(value.failureMode == mode);
    count = 0;
    small = 0;
    CHECK(aclrtLaunchHostFunc(stream, add_one, &count) == 0);
    CHECK(aclrtLaunchHostFunc(stream, throw_it, nullptr) == 0);
    CHECK(aclrtLaunchHostFunc(stream, add_one, &count) == 0);
    while (!idle(stream)) std::this_thread::yield();
    CHECK(aclrtMemsetAsync(&small, 1, 1, 1, stream) == 0);  // on the caller's thread, had it not failed
    while (!idle(stream)) std::this_thread::yield();
    const bool stops = mode == ACL_STOP_ON_FAILURE;
    CHECK(count == (stops ? 1 : 2));
    CHECK(small == (stops ? 0 : 1));
    CHECK(aclrtSynchronizeStream(stream) == ACLNN_ERR_RUNTIME_ERROR);
    CHECK(aclrtMemsetAsync(&small, 1, 2, 1, stream) == 0);
    CHECK(aclrtSynchronizeStream(stream) == 0);
    CHECK(small == 2);
  }
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtSetStreamFailureMode", aclrtSetStreamFailureMode(stream, 2));
}

TEST_CASE("what is aborted is dropped, and the streams go on") {
  const Runtime runtime;
  const Stream stream, other;
  std::atomic<int> count{0};
  alignas(8) uint64_t word = 0;
  CHECK(aclrtValueWait(&word, 1, ACL_STREAM_WAIT_VALUE_EQ, stream) == 0);
  CHECK(aclrtLaunchHostFunc(stream, add_one, &count) == 0);
  CHECK(aclrtLaunchHostFunc(nullptr, [](void*) { std::this_thread::sleep_for(100ms); }, nullptr) == 0);
  std::this_thread::sleep_for(20ms);
  CHECK(aclrtDeviceTaskAbort(0, 1) == ACL_ERROR_RT_STREAM_SYNC_TIMEOUT);
  CHECK(aclrtDeviceTaskAbort(0, 0) == 0);
  CHECK(idle(stream));
  CHECK(idle(nullptr));
  CHECK(count == 0);
  CHECK(aclrtLaunchHostFunc(stream, add_one, &count) == 0);
  CHECK(aclrtSynchronizeStream(stream) == 0);
  CHECK(count == 1);
  REFUSED(ACL_ERROR_INVALID_DEVICE, "aclrtDeviceTaskAbort", aclrtDeviceTaskAbort(1, 0));
}

TEST_CASE("what a stream says of itself") {
  const Runtime runtime;
  const Stream stream;
  aclrtStream made = nullptr;
  int32_t id = -1, other = -1, fallback = -1;
  uint32_t priority = 9, flags = 9;
  CHECK(aclrtCreateStreamWithConfig(&made, 3, ACL_STREAM_FAST_LAUNCH | ACL_STREAM_HUGE) == 0);
  CHECK(aclrtStreamGetId(stream, &id) == 0);
  CHECK(aclrtStreamGetId(made, &other) == 0);
  CHECK(aclrtStreamGetId(nullptr, &fallback) == 0);
  CHECK(id >= 0);
  CHECK(other > id);
  CHECK(fallback > other);
  CHECK(aclrtStreamGetPriority(made, &priority) == 0);
  CHECK(aclrtStreamGetFlags(made, &flags) == 0);
  CHECK(priority == 3);
  CHECK(flags == (ACL_STREAM_FAST_LAUNCH | ACL_STREAM_HUGE));
  aclrtStreamAttrValue value = {};
  value.streamPriority = 5;
  CHECK(aclrtSetStreamAttribute(made, ACL_STREAM_ATTR_PRIORITY, &value) == 0);
  CHECK(aclrtStreamGetPriority(made, &priority) == 0);
  CHECK(priority == 5);
  value.userCustomTag = 77;
  CHECK(aclrtSetStreamAttribute(made, ACL_STREAM_ATTR_USER_CUSTOM_TAG, &value) == 0);
  CHECK(aclrtGetStreamAttribute(made, ACL_STREAM_ATTR_USER_CUSTOM_TAG, &value) == 0);
  CHECK(value.userCustomTag == 77);
  CHECK(aclrtGetStreamAttribute(stream, ACL_STREAM_ATTR_USER_CUSTOM_TAG, &value) == 0);
  CHECK(value.userCustomTag == 0);
  uint32_t flag = 9;
  CHECK(aclrtGetStreamOverflowSwitch(made, &flag) == 0);
  CHECK(flag == 0);
  CHECK(aclrtSetStreamOverflowSwitch(made, 1) == 0);
  CHECK(aclrtGetStreamAttribute(made, ACL_STREAM_ATTR_FLOAT_OVERFLOW_CHECK, &value) == 0);
  CHECK(value.overflowSwitch == 1);
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtSetStreamOverflowSwitch", aclrtSetStreamOverflowSwitch(made, 2));
  value = {};
  REFUSED(ACL_ERROR_RT_PARAM_INVALID, "aclrtSetStreamAttribute",
          aclrtSetStreamAttribute(made, ACL_STREAM_ATTR_CACHE_OP_INFO, &value));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtGetStreamAttribute",
          aclrtGetStreamAttribute(made, static_cast<aclrtStreamAttr>(6), &value));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtSetStreamAttribute",
          aclrtSetStreamAttribute(made, ACL_STREAM_ATTR_PRIORITY, nullptr));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtStreamGetId", aclrtStreamGetId(made, nullptr));
  CHECK(aclrtDestroyStream(made) == 0);
  REFUSED(ACL_ERROR_INVALID_RESOURCE_HANDLE, "aclrtStreamGetId", aclrtStreamGetId(made, &id));
}
