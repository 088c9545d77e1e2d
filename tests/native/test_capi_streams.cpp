// Streams, events, waits, contexts and options through the C interface.
#include <doctest/doctest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "capi_runtime.h"
#include "in_child.h"

namespace {

constexpr size_t kBlock = size_t{8} << 20;  // large enough for the stream's thread

struct Stream {
  Stream() { REQUIRE(aclrtCreateStream(&handle) == ACL_SUCCESS); }
  ~Stream() { CHECK(aclrtDestroyStreamForce(handle) == ACL_SUCCESS); }
  operator aclrtStream() const { return handle; }
  aclrtStream handle = nullptr;
};

struct Event {
  Event() { REQUIRE(aclrtCreateEvent(&handle) == ACL_SUCCESS); }
  ~Event() { CHECK(aclrtDestroyEvent(handle) == ACL_SUCCESS); }
  operator aclrtEvent() const { return handle; }
  bool complete() const {
    aclrtEventRecordedStatus status;
    CHECK(aclrtQueryEventStatus(handle, &status) == ACL_SUCCESS);
    return status == ACL_EVENT_RECORDED_STATUS_COMPLETE;
  }
  aclrtEvent handle = nullptr;
};

bool idle(aclrtStream stream) {
  aclrtStreamStatus status;
  CHECK(aclrtStreamQuery(stream, &status) == ACL_SUCCESS);
  return status == ACL_STREAM_STATUS_COMPLETE;
}

// Fills that take some seconds in all, on any machine. Tests drop most of them in the end.
struct Busy {
  void on(aclrtStream stream) {
    for (int i = 0; i < 2000; ++i) {
      CHECK(aclrtMemsetAsync(memory.get(), kBlock, i, kBlock, stream) == ACL_SUCCESS);
    }
  }
  std::unique_ptr<char[]> memory{new char[kBlock]};
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

TEST_CASE("copies and fills keep the order of their stream") {
  const Runtime runtime;
  const Stream stream;
  std::vector<char> a(kBlock), b(kBlock), c(kBlock), small(64);
  for (int round = 1; round < 6; ++round) {
    // Large and small ones in turns: the small ones may not overtake.
    CHECK(aclrtMemsetAsync(a.data(), kBlock, round, kBlock, stream) == 0);
    CHECK(aclrtMemcpyAsync(small.data(), 64, a.data() + kBlock - 64, 64, ACL_MEMCPY_DEVICE_TO_HOST, stream) == 0);
    CHECK(aclrtMemcpyAsync(b.data(), kBlock, a.data(), kBlock, ACL_MEMCPY_DEVICE_TO_DEVICE, stream) == 0);
    CHECK(aclrtMemsetAsync(a.data(), 64, 100, 64, stream) == 0);
    CHECK(aclrtMemcpyAsync(c.data(), kBlock, b.data(), kBlock, ACL_MEMCPY_DEVICE_TO_DEVICE, stream) == 0);
    CHECK(aclrtMemcpyAsync(c.data(), kBlock, a.data(), 64, ACL_MEMCPY_DEVICE_TO_DEVICE, stream) == 0);
    CHECK(aclrtSynchronizeStream(stream) == 0);
    CHECK(idle(stream));
    CHECK(small == std::vector<char>(64, static_cast<char>(round)));
    CHECK(b == std::vector<char>(kBlock, static_cast<char>(round)));
    CHECK(c[0] == 100);
    CHECK(c[63] == 100);
    CHECK(c[64] == round);
    CHECK(c.back() == round);
  }
}

TEST_CASE("copies of rows") {
  const Runtime runtime;
  const Stream stream;
  Busy busy;
  std::vector<char> from(5 * 8), to(5 * 6, 9), expected(5 * 6, 9);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i);
  for (size_t row = 0; row < 5; ++row) std::memcpy(&expected[row * 6], &from[row * 8], 3);
  CHECK(aclrtMemcpy2d(to.data(), 6, from.data(), 8, 3, 5, ACL_MEMCPY_HOST_TO_DEVICE) == 0);
  CHECK(to == expected);
  CHECK(aclrtMemcpy2d(to.data(), 6, from.data(), 8, 3, 0, ACL_MEMCPY_HOST_TO_DEVICE) == 0);
  CHECK(aclrtMemcpy2d(to.data(), 6, from.data(), 8, 0, 5, ACL_MEMCPY_HOST_TO_DEVICE) == 0);
  CHECK(aclrtMemcpy2d(to.data(), 0, from.data(), 0, 0, ~size_t{0}, ACL_MEMCPY_HOST_TO_DEVICE) == 0);
  CHECK(to == expected);
  // In the order of the stream.
  to.assign(to.size(), 9);
  CHECK(aclrtMemsetAsync(busy.memory.get(), kBlock, 1, kBlock, stream) == 0);
  CHECK(aclrtMemcpy2dAsync(to.data(), 6, from.data(), 8, 3, 5, ACL_MEMCPY_DEVICE_TO_HOST, stream) == 0);
  CHECK(aclrtMemsetAsync(from.data(), from.size(), 0, from.size(), stream) == 0);
  CHECK(aclrtSynchronizeStream(stream) == 0);
  CHECK(to == expected);
}

TEST_CASE("a copy by way of a buffer leaves its source to the caller") {
  const Runtime runtime;
  const Stream stream;
  Busy busy;
  std::vector<char> from(64, 3), to(64);
  for (const aclrtMemcpyKind kind : {ACL_MEMCPY_INNER_DEVICE_TO_DEVICE, ACL_MEMCPY_INTER_DEVICE_TO_DEVICE}) {
    CHECK(aclrtMemcpy(to.data(), 64, from.data(), 64, kind) == 0);
    CHECK(to == from);
    to.assign(64, 0);
  }
  for (int i = 0; i < 20; ++i) {
    CHECK(aclrtMemsetAsync(busy.memory.get(), kBlock, 1, kBlock, stream) == 0);
  }
  CHECK(aclrtMemcpyAsync(to.data(), 64, from.data(), 64, ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE, stream) == 0);
  CHECK(aclrtMemcpyAsync(to.data(), 64, from.data(), 0, ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE, stream) == 0);
  from.assign(64, 5);
  CHECK(aclrtSynchronizeStream(stream) == 0);
  CHECK(to == std::vector<char>(64, 3));
}

TEST_CASE("operators, copies and fills on one stream") {
  const Runtime runtime;
  const Stream stream;
  Problem problem(2048, 256), model(2048, 256);
  REQUIRE(model.both(nullptr) == 0);
  // The inputs come while the stream is at work already, and the result is taken away and wiped behind it.
  const size_t bytes = problem.x.bytes();
  std::vector<char> x(problem.x.data(), problem.x.data() + bytes), result(bytes);
  std::memset(problem.x.data(), 0, bytes);
  Launch launch(problem);
  CHECK(aclrtMemcpyAsync(problem.x.data(), bytes, x.data(), bytes, ACL_MEMCPY_HOST_TO_DEVICE, stream) == 0);
  CHECK(launch(stream) == 0);
  CHECK(aclrtMemcpyAsync(result.data(), bytes, problem.dx.data(), bytes, ACL_MEMCPY_DEVICE_TO_HOST, stream) == 0);
  CHECK(aclrtMemsetAsync(problem.dx.data(), bytes, 0, bytes, stream) == 0);
  CHECK(aclrtSynchronizeStream(stream) == 0);
  CHECK(std::memcmp(result.data(), model.dx.data(), bytes) == 0);
  CHECK(problem.dx.at(0) == 0);
}

TEST_CASE("events: complete, waited for, timed") {
  const Runtime runtime;
  const Stream other;
  Stream stream;
  const Event begin, end, never;
  float milliseconds = -1;
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtEventElapsedTime", aclrtEventElapsedTime(&milliseconds, begin, end));
  CHECK(milliseconds == -1);
  CHECK_FALSE(never.complete());  // but there is nothing to wait for
  CHECK(aclrtSynchronizeEvent(never) == 0);
  CHECK(aclrtStreamWaitEvent(stream, never) == 0);
  CHECK(idle(stream));

  const auto start = std::chrono::steady_clock::now();
  CHECK(aclrtRecordEvent(begin, stream) == 0);
  CHECK(begin.complete());
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  CHECK(aclrtRecordEvent(end, stream) == 0);
  CHECK(aclrtSynchronizeEvent(end) == 0);
  CHECK(aclrtEventElapsedTime(&milliseconds, begin, end) == 0);
  CHECK(milliseconds >= 30);
  CHECK(milliseconds <= 1000 * seconds_since(start));
  float back = 0;
  CHECK(aclrtEventElapsedTime(&back, end, begin) == 0);
  CHECK(back == -milliseconds);
  uint64_t from_time = 0, to_time = 0;
  CHECK(aclrtEventGetTimestamp(begin, &from_time) == 0);
  CHECK(aclrtEventGetTimestamp(end, &to_time) == 0);
  CHECK(static_cast<double>(to_time - from_time) == doctest::Approx(1000.0 * milliseconds).epsilon(0.001));
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  CHECK(to_time <= static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count()));
  aclrtEventStatus older = ACL_EVENT_STATUS_RESERVED;
  CHECK(aclrtQueryEvent(end, &older) == 0);
  CHECK(older == ACL_EVENT_STATUS_COMPLETE);
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtQueryEvent", aclrtQueryEvent(end, nullptr));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtEventGetTimestamp", aclrtEventGetTimestamp(end, nullptr));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtEventGetTimestamp", aclrtEventGetTimestamp(never, &to_time));

  // Created for waiting alone: it has no time.
  aclrtEvent untimed = nullptr;
  CHECK(aclrtCreateEventWithFlag(&untimed, ACL_EVENT_SYNC) == 0);
  CHECK(aclrtRecordEvent(untimed, stream) == 0);
  CHECK(aclrtSynchronizeEvent(untimed) == 0);
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtEventElapsedTime", aclrtEventElapsedTime(&milliseconds, begin, untimed));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtEventElapsedTime", aclrtEventElapsedTime(&milliseconds, untimed, end));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtEventGetTimestamp", aclrtEventGetTimestamp(untimed, &to_time));
  CHECK(aclrtDestroyEvent(untimed) == 0);

  // Recorded behind work: not complete before it, and another stream waits for it.
  Busy busy;
  std::vector<char> from(64, 1), to(64);
  busy.on(stream);
  CHECK(aclrtRecordEvent(end, stream) == 0);
  CHECK_FALSE(end.complete());
  CHECK_FALSE(idle(stream));
  CHECK(aclrtQueryEvent(end, &older) == 0);
  CHECK(older == ACL_EVENT_STATUS_NOT_READY);
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtEventGetTimestamp", aclrtEventGetTimestamp(end, &to_time));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtEventElapsedTime", aclrtEventElapsedTime(&milliseconds, begin, end));
  CHECK(aclrtStreamWaitEvent(other, end) == 0);
  CHECK(aclrtMemcpyAsync(to.data(), 64, from.data(), 64, ACL_MEMCPY_DEFAULT, other) == 0);
  CHECK_FALSE(idle(other));
  CHECK(to[0] == 0);
  // After a reset it is as if never recorded; the earlier wait still waits for the earlier record.
  CHECK(aclrtResetEvent(end, stream) == 0);
  CHECK_FALSE(end.complete());
  CHECK(aclrtSynchronizeEvent(end) == 0);
  CHECK_FALSE(idle(other));
  CHECK(aclrtDestroyStreamForce(stream) == 0);  // drops the work; the record comes true all the same
  stream.handle = nullptr;
  CHECK(aclrtSynchronizeStream(other) == 0);
  CHECK(to[0] == 1);
}

TEST_CASE("timeouts") {
  const Runtime runtime;
  Busy busy;
  Stream stream;
  Event event;
  for (const int32_t none : {-2, INT32_MIN}) {
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtSynchronizeEventWithTimeout", aclrtSynchronizeEventWithTimeout(event, none));
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtSynchronizeStreamWithTimeout",
            aclrtSynchronizeStreamWithTimeout(stream, none));
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtSynchronizeDeviceWithTimeout", aclrtSynchronizeDeviceWithTimeout(none));
  }
  for (const int32_t enough : {-1, 0, 1, INT32_MAX}) {  // nothing to wait for
    CHECK(aclrtSynchronizeStreamWithTimeout(stream, enough) == 0);
    CHECK(aclrtSynchronizeDeviceWithTimeout(enough) == 0);
    CHECK(aclrtSynchronizeEventWithTimeout(event, enough) == 0);
  }
  busy.on(stream);
  CHECK(aclrtRecordEvent(event, stream) == 0);
  for (const int32_t brief : {0, 1, 10}) {
    const auto start = std::chrono::steady_clock::now();
    REFUSED(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "aclrtSynchronizeStreamWithTimeout",
            aclrtSynchronizeStreamWithTimeout(stream, brief));
    CHECK(sentence().find(std::to_string(brief) + " ms") != std::string::npos);
    REFUSED(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "aclrtSynchronizeDeviceWithTimeout",
            aclrtSynchronizeDeviceWithTimeout(brief));
    REFUSED(ACL_ERROR_RT_EVENT_SYNC_TIMEOUT, "aclrtSynchronizeEventWithTimeout",
            aclrtSynchronizeEventWithTimeout(event, brief));
    CHECK(sentence().find(std::to_string(brief) + " ms") != std::string::npos);
    CHECK(1000 * seconds_since(start) >= 2 * brief);
  }
  CHECK_FALSE(idle(stream));
  const auto start = std::chrono::steady_clock::now();
  CHECK(aclrtDestroyStreamForce(stream) == 0);
  CHECK(seconds_since(start) < 5);
  CHECK(aclrtSynchronizeEventWithTimeout(event, 10000) == 0);  // the record has come true
  REQUIRE(aclrtCreateStream(&stream.handle) == 0);
  char byte = 0;
  CHECK(aclrtMemsetAsync(&byte, 1, 5, 1, stream) == 0);
  CHECK(aclrtSynchronizeStreamWithTimeout(stream, 10000) == 0);
  CHECK(byte == 5);
}

TEST_CASE("of several streams that failed each tells, also where the device is waited for" * FORKS_BESIDE_THREADS) {
  const Runtime runtime;
  Busy busy;
  const Stream streams[3];
  for (const Stream& stream : streams) busy.on(stream);
  CHECK(in_child([&] {  // in which all of them have lost their work
          busy.on(streams[0]);
          return aclrtSynchronizeDeviceWithTimeout(1) == ACL_ERROR_RT_STREAM_SYNC_TIMEOUT &&
                 aclrtSynchronizeStream(streams[1]) == ACLNN_ERR_RUNTIME_ERROR &&
                 aclrtDestroyStreamForce(streams[0]) == 0 && aclrtSynchronizeDevice() == ACLNN_ERR_RUNTIME_ERROR &&
                 aclrtSynchronizeDevice() == 0;
        }) == 0);
}

TEST_CASE("destroying a stream waits for the work in it, the forced end drops what has not begun") {
  const Runtime runtime;
  Problem problem(4096, 256), model(4096, 256);
  REQUIRE(model.both(nullptr) == 0);
  aclrtStream stream = nullptr;
  REQUIRE(aclrtCreateStream(&stream) == 0);
  Launch launch(problem);
  std::vector<char> block(kBlock);
  CHECK(launch(stream) == 0);
  CHECK(aclrtMemsetAsync(block.data(), kBlock, 9, kBlock, stream) == 0);
  CHECK(aclrtDestroyStream(stream) == 0);
  CHECK(problem.digest() == model.digest());
  CHECK(block == std::vector<char>(kBlock, 9));

  Busy busy;
  REQUIRE(aclrtCreateStream(&stream) == 0);
  busy.on(stream);
  char last = 1;
  CHECK(aclrtMemsetAsync(&last, 1, 2, 1, stream) == 0);
  CHECK(aclrtDestroyStreamForce(stream) == 0);
  CHECK(last == 1);

  // Nor does it wait for another stream's work, where the stream itself does.
  const Stream other;
  const Event event;
  busy.on(other);
  CHECK(aclrtRecordEvent(event, other) == 0);
  REQUIRE(aclrtCreateStream(&stream) == 0);
  CHECK(aclrtStreamWaitEvent(stream, event) == 0);
  CHECK(aclrtMemsetAsync(&last, 1, 2, 1, stream) == 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it has begun to wait
  CHECK(aclrtDestroyStreamForce(stream) == 0);
  CHECK_FALSE(event.complete());
  CHECK(last == 1);
}

TEST_CASE("freeing memory waits for the work that uses it") {
  const Runtime runtime;
  const Stream stream;
  void* memory = nullptr;
  REQUIRE(aclrtMalloc(&memory, kBlock, ACL_MEM_MALLOC_HUGE_FIRST) == 0);
  std::vector<char> copy(kBlock);
  CHECK(aclrtMemsetAsync(memory, kBlock, 3, kBlock, stream) == 0);
  CHECK(aclrtMemcpyAsync(copy.data(), kBlock, memory, kBlock, ACL_MEMCPY_DEVICE_TO_HOST, stream) == 0);
  CHECK(aclrtFree(memory) == 0);
  CHECK(copy == std::vector<char>(kBlock, 3));
}

TEST_CASE("contexts are a thread's own, and their options are kept") {
  const Runtime runtime;
  aclrtContext initial = nullptr, made = nullptr, now = nullptr;
  CHECK(aclrtGetCurrentContext(&initial) == 0);
  CHECK(initial != nullptr);
  CHECK(aclrtCreateContext(&made, 0) == 0);  // and makes it the thread's
  CHECK(made != initial);
  CHECK(aclrtGetCurrentContext(&now) == 0);
  CHECK(now == made);
  int64_t value = -1;
  CHECK(aclrtCtxGetSysParamOpt(ACL_OPT_DETERMINISTIC, &value) == 0);
  CHECK(value == 1);  // always deterministic
  CHECK(aclrtCtxSetSysParamOpt(ACL_OPT_DETERMINISTIC, 0) == 0);
  CHECK(aclrtCtxGetSysParamOpt(ACL_OPT_DETERMINISTIC, &value) == 0);
  CHECK(value == 0);
  std::thread([&] {
    CHECK(aclrtGetCurrentContext(&now) == 0);
    CHECK(now == initial);
    CHECK(aclrtCtxGetSysParamOpt(ACL_OPT_DETERMINISTIC, &value) == 0);
    CHECK(value == 1);
    CHECK(aclrtSetCurrentContext(made) == 0);
    CHECK(aclrtCtxGetSysParamOpt(ACL_OPT_DETERMINISTIC, &value) == 0);
    CHECK(value == 0);
  }).join();
  CHECK(aclrtSetCurrentContext(initial) == 0);
  CHECK(aclrtCtxGetSysParamOpt(ACL_OPT_DETERMINISTIC, &value) == 0);
  CHECK(value == 1);
  CHECK(aclrtSetCurrentContext(made) == 0);
  CHECK(aclrtDestroyContext(made) == 0);
  CHECK(aclrtGetCurrentContext(&now) == 0);
  CHECK(now == initial);
  REFUSED(ACL_ERROR_INVALID_RESOURCE_HANDLE, "aclrtSetCurrentContext", aclrtSetCurrentContext(made));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtSetCurrentContext", aclrtSetCurrentContext(nullptr));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtCtxSetSysParamOpt", aclrtCtxSetSysParamOpt(ACL_OPT_DETERMINISTIC, 2));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtCtxGetSysParamOpt",
          aclrtCtxGetSysParamOpt(static_cast<aclSysParamOpt>(3), &value));
  CHECK(aclrtCtxGetSysParamOpt(ACL_OPT_STRONG_CONSISTENCY, &value) == 0);
  CHECK(value == 1);
  CHECK(aclrtCtxSetSysParamOpt(ACL_OPT_STRONG_CONSISTENCY, 0) == 0);
  CHECK(aclrtCtxGetSysParamOpt(ACL_OPT_STRONG_CONSISTENCY, &value) == 0);
  CHECK(value == 0);
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtGetSysParamOpt", aclrtGetSysParamOpt(static_cast<aclSysParamOpt>(-1), &value));
}

TEST_CASE("results are deterministic, whatever the switch says and however many threads there are") {
  int64_t value = -1;
  {
    const Runtime runtime;
    uint64_t expected = 0;
    for (const int64_t wanted : {1, 0}) {
      CHECK(aclrtSetSysParamOpt(ACL_OPT_DETERMINISTIC, wanted) == 0);
      CHECK(aclrtGetSysParamOpt(ACL_OPT_DETERMINISTIC, &value) == 0);
      CHECK(value == wanted);
      CHECK(aclrtCtxSetSysParamOpt(ACL_OPT_DETERMINISTIC, wanted) == 0);
      for (const int threads : {1, 2, 3, 8}) {
        CHECK(descendSetNumThreads(threads) == 0);
        Problem problem(3000, 200);
        CHECK(problem.both(nullptr) == 0);
        if (expected == 0) expected = problem.digest();
        CHECK(problem.digest() == expected);
      }
    }
    CHECK(descendSetNumThreads(0) == 0);
  }
  const Runtime again;  // with nothing left from before aclFinalize
  CHECK(aclrtGetSysParamOpt(ACL_OPT_DETERMINISTIC, &value) == 0);
  CHECK(value == 1);
}

TEST_CASE("lists of tensors and scalars") {
  const Runtime runtime;
  Problem problem;
  float one = 1;
  const int64_t length = 4;
  const aclTensor* tensors[3];
  const aclScalar* scalars[2];
  for (auto& tensor : tensors) {
    tensor = aclCreateTensor(&length, 1, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, &length, 1, nullptr);
  }
  for (auto& scalar : scalars) scalar = aclCreateScalar(&one, ACL_FLOAT);
  aclTensorList* const list = aclCreateTensorList(tensors, 3);
  aclScalarList* const numbers = aclCreateScalarList(scalars, 2);
  aclTensorList* const empty = aclCreateTensorList(nullptr, 0);
  uint64_t size = 99;
  CHECK(aclGetTensorListSize(list, &size) == 0);
  CHECK(size == 3);
  CHECK(aclGetScalarListSize(numbers, &size) == 0);
  CHECK(size == 2);
  CHECK(aclGetTensorListSize(empty, &size) == 0);
  CHECK(size == 0);
  REFUSED(ACLNN_ERR_PARAM_NULLPTR, "aclGetTensorListSize", aclGetTensorListSize(list, nullptr));
  REFUSED(ACLNN_ERR_PARAM_NULLPTR, "aclGetTensorListSize", aclGetTensorListSize(nullptr, &size));
  CHECK(aclDestroyTensorList(list) == 0);  // and with it its tensors
  for (const auto* tensor : tensors) REFUSED(ACLNN_ERR_PARAM_INVALID, "aclDestroyTensor", aclDestroyTensor(tensor));
  CHECK(aclDestroyScalarList(numbers) == 0);
  for (const auto* scalar : scalars) REFUSED(ACLNN_ERR_PARAM_INVALID, "aclDestroyScalar", aclDestroyScalar(scalar));
  CHECK(aclDestroyTensorList(empty) == 0);
  // A list may have tensors that were destroyed, or the same tensor twice.
  const aclTensor* twice[] = {problem.x, problem.x, nullptr, tensors[0]};
  CHECK(aclDestroyTensorList(aclCreateTensorList(twice, 4)) == 0);
  REFUSED(ACLNN_ERR_PARAM_INVALID, "aclDestroyTensor", aclDestroyTensor(problem.x));
}

TEST_CASE("what a tensor says of itself") {
  const Runtime runtime;
  const int64_t shape[] = {2, 3}, strides[] = {10, 2}, storage[] = {40};
  char memory[160];
  aclTensor* const tensor = aclCreateTensor(shape, 2, ACL_FLOAT, strides, 5, ACL_FORMAT_NCHW, storage, 1, memory);
  const auto dims = [&](aclnnStatus (*get)(const aclTensor*, int64_t**, uint64_t*)) {
    int64_t* values = nullptr;
    uint64_t count = 0;
    CHECK(get(tensor, &values, &count) == 0);
    const std::vector<int64_t> result(values, values + count);
    delete[] values;
    return result;
  };
  CHECK(dims(aclGetViewShape) == std::vector<int64_t>{2, 3});
  CHECK(dims(aclGetViewStrides) == std::vector<int64_t>{10, 2});
  CHECK(dims(aclGetStorageShape) == std::vector<int64_t>{40});
  int64_t offset = 0;
  aclFormat format = ACL_FORMAT_ND;
  aclDataType dtype = ACL_BOOL;
  void* address = nullptr;
  CHECK(aclGetViewOffset(tensor, &offset) == 0);
  CHECK(aclGetFormat(tensor, &format) == 0);
  CHECK(aclGetDataType(tensor, &dtype) == 0);
  CHECK(aclGetRawTensorAddr(tensor, &address) == 0);
  CHECK(offset == 5);
  CHECK(format == ACL_FORMAT_NCHW);
  CHECK(dtype == ACL_FLOAT);
  CHECK(address == memory);
  REFUSED(ACLNN_ERR_PARAM_NULLPTR, "aclGetViewShape", aclGetViewShape(tensor, nullptr, nullptr));
  CHECK(aclInitTensor(tensor, shape, 1, ACL_BF16, nullptr, 0, ACL_FORMAT_ND, shape, 1, nullptr) == 0);
  CHECK(dims(aclGetViewShape) == std::vector<int64_t>{2});
  CHECK(dims(aclGetViewStrides) == std::vector<int64_t>{1});
  CHECK(aclDestroyTensor(tensor) == 0);
}
