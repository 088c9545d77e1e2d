// The C interface out of memory, at every single allocation: a status and a sentence, and later calls work.
#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "every_operator.h"

namespace {

std::atomic<int64_t> left{INT64_MAX};  // allocations that still succeed
std::atomic<bool> for_good{false};     // whether all later ones fail, too

}  // namespace

// What the library allocates comes from here, too.
[[gnu::noinline]] void* operator new(size_t size) {
  const int64_t now = left.fetch_sub(1);
  if (now == 0 || (now < 0 && for_good)) throw std::bad_alloc();
  void* const pointer = std::malloc(size > 0 ? size : 1);
  if (pointer == nullptr) throw std::bad_alloc();
  return pointer;
}
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
[[gnu::noinline]] void operator delete(void* pointer) noexcept { std::free(pointer); }
[[gnu::noinline]] void operator delete(void* pointer, size_t) noexcept { std::free(pointer); }

namespace {

// Statuses as they come, kept without an allocation.
struct Log {
  void operator()(int status) {
    if (status != 0 && std::strstr(aclGetRecentErrMsg(), ": ") == nullptr) nameless = true;
    REQUIRE(count < 64);
    statuses[count++] = status;
  }
  int statuses[64];
  int count = 0;
  bool nameless = false;  // whether a sentence did not say who failed
};

struct Buffers {
  Buffers() : problem(200, 64), workspace(1 << 16), block(2 << 20), copy(2 << 20) {}
  Problem problem;
  std::vector<char> workspace, block, copy;
};

// A whole program but for its end. Everything is freed, or left to aclFinalize.
void live(Log& log, Buffers& on) {
  aclrtStream stream = nullptr;
  aclrtEvent event = nullptr;
  aclrtContext context = nullptr;
  void* memory = nullptr;
  log(aclrtCreateStream(&stream));
  log(aclrtCreateEvent(&event));
  log(aclrtCreateContext(&context, 0));
  log(aclrtMalloc(&memory, 4096, ACL_MEM_MALLOC_HUGE_FIRST));
  const int64_t many[12] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4}, length = 4;
  aclTensor* const tensor =
      aclCreateTensor(many, 12, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, &length, 1, on.workspace.data());
  if (tensor == nullptr) log(ACL_ERROR_BAD_ALLOC);
  aclIntArray* const array = aclCreateIntArray(many, 12);
  if (array == nullptr) log(ACL_ERROR_BAD_ALLOC);
  const aclTensor* const tensors[] = {tensor};
  aclTensorList* const list = aclCreateTensorList(tensors, 1);
  if (list == nullptr) log(ACL_ERROR_BAD_ALLOC);
  aclTensorDesc* const desc = aclCreateTensorDesc(ACL_FLOAT, 12, many, ACL_FORMAT_ND);
  if (desc == nullptr) log(ACL_ERROR_BAD_ALLOC);
  CHECK(aclGetTensorDescElementCount(desc) == (desc == nullptr ? 0 : 4));
  uint64_t size = 77;
  aclOpExecutor* executor = nullptr;
  log(on.problem.first(&size, &executor));
  if (executor == nullptr) CHECK(size == 77);  // nothing is written on failure
  if (executor != nullptr && size <= on.workspace.size()) {
    log(aclSetAclOpExecutorRepeatable(executor));
    log(aclSetInputTensorAddr(executor, 0, on.problem.dy, on.problem.dy.data()));
    log(aclnnRmsNormGrad(on.workspace.data(), size, executor, stream));
    log(aclrtMemsetAsync(on.block.data(), on.block.size(), 1, on.block.size(), stream));
    log(aclnnRmsNormGrad(on.workspace.data(), size, executor, stream));
  }
  log(aclrtMemcpyAsync(on.copy.data(), on.copy.size(), on.block.data(), on.block.size(), ACL_MEMCPY_DEFAULT, stream));
  log(aclrtMemcpyAsync(on.copy.data(), 64, many, 64, ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE, stream));  // read at once
  log(aclrtMemcpy2dAsync(on.copy.data(), 64, on.block.data(), 64, 8, 8, ACL_MEMCPY_DEFAULT, stream));
  if (event != nullptr) {
    log(aclrtRecordEvent(event, stream));
    log(aclrtStreamWaitEvent(nullptr, event));
    log(aclrtSynchronizeEvent(event));
  }
  log(aclrtSynchronizeDevice());
  log(aclrtSynchronizeStream(stream));
  log(aclrtSynchronizeStream(nullptr));
  if (memory != nullptr) log(aclrtFree(memory));
  if (list != nullptr) log(aclDestroyTensorList(list));
  if (list == nullptr && tensor != nullptr) log(aclDestroyTensor(tensor));
  if (array != nullptr) log(aclDestroyIntArray(array));
  aclDestroyTensorDesc(desc);
  if (executor != nullptr) log(aclDestroyAclOpExecutor(executor));
  if (context != nullptr) log(aclrtDestroyContext(context));
  if (event != nullptr) log(aclrtDestroyEvent(event));
  if (stream != nullptr) log(aclrtDestroyStream(stream));
}

}  // namespace

TEST_CASE("every allocation fails once, or from there on") {
  const auto digest = [] {
    const Runtime runtime;
    Problem problem(200, 64);
    REQUIRE(problem.both(nullptr) == 0);
    return problem.digest();
  };
  const uint64_t expected = digest();
  for (const bool all : {false, true}) {
    int64_t used = 0;
    for (int64_t n = 0; n <= used; ++n) {
      CAPTURE(n);
      CAPTURE(all);
      Log log;
      REQUIRE(aclInit(nullptr) == 0);
      REQUIRE(descendSetProduct("host") == 0);
      Buffers on;
      for_good = all;
      left = n;
      live(log, on);
      int ended = aclFinalize();
      used = std::max(used, n - left);
      left = INT64_MAX;
      for_good = false;
      CHECK_FALSE(log.nameless);
      for (int i = 0; i < log.count; ++i) {
        const int status = log.statuses[i];
        const bool known = status == 0 || status == ACL_ERROR_BAD_ALLOC || status == ACLNN_ERR_RUNTIME_ERROR;
        CHECK_MESSAGE(known, "call ", i, " ends in ", status);
      }
      // Whatever failed, the library still works.
      if (ended == ACL_ERROR_REPEAT_FINALIZE || ended == ACL_ERROR_UNINITIALIZE) FAIL("ended by a failure");
      if (ended != 0) {
        CHECK(ended == ACL_ERROR_BAD_ALLOC);
        CHECK(aclFinalize() == 0);
      }
      CHECK(digest() == expected);
    }
  }
}

TEST_CASE("every allocation of every operator's phases fails once, or from there on") {
  const int64_t before = left;
  operator delete(operator new(1));
  if (left == before) {  // valgrind has its own operator new
    MESSAGE("left out: allocations cannot fail here");
    return;
  }
  const Runtime runtime;
  for (const Operator& op : operators()) {
    CAPTURE(op.name);
    const auto digest = [&op] {
      uint64_t hash = 0;
      for (const auto& output : op.outputs) hash = output->digest(hash);
      return hash;
    };
    std::vector<char> workspace(1 << 16);
    uint64_t size = 0;
    aclOpExecutor* executor = nullptr;
    const auto compute = [&](Log& log) {
      executor = nullptr;
      log(op.first(&size, &executor));
      if (executor == nullptr) return;
      log(op.second(workspace.data(), size, executor, nullptr));
      log(aclrtSynchronizeStream(nullptr));
      if (log.statuses[1] != 0) log(aclDestroyAclOpExecutor(executor));
    };
    Log fine;
    compute(fine);
    REQUIRE(size <= workspace.size());
    const uint64_t expected = digest();
    int failures = 0;
    for (const bool all : {false, true}) {
      for (int64_t n = 0;; ++n) {
        CAPTURE(n);
        CAPTURE(all);
        Log log;
        for_good = all;
        left = n;
        compute(log);
        const bool reached = left < 0;
        left = INT64_MAX;
        for_good = false;
        CHECK_FALSE(log.nameless);
        for (int i = 0; i < log.count; ++i) {
          const int status = log.statuses[i];
          CHECK_MESSAGE((status == 0 || status == ACLNN_ERR_RUNTIME_ERROR || status == ACL_ERROR_BAD_ALLOC), status);
          failures += status != 0;
        }
        for (const auto& output : op.outputs) std::memset(output->data(), 0xFF, output->bytes());
        Log after;
        compute(after);
        for (int i = 0; i < after.count; ++i) CHECK(after.statuses[i] == 0);
        CHECK(digest() == expected);
        if (!reached) break;
      }
    }
    CHECK(failures > 0);
  }
}
