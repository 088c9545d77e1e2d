// The C interface from the first call to the last: memory, executors, streams, threads, portability.
#include <doctest/doctest.h>

#include <atomic>
#include <string>
#include <thread>

#include "aclnnop/aclnn_rms_norm.h"
#include "capi_runtime.h"
#include "descend_portability.h"

TEST_CASE("before aclInit, twice, and after aclFinalize") {
  void* memory = nullptr;
  aclrtStream stream = nullptr;
  CHECK(aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST) == ACL_ERROR_UNINITIALIZE);
  CHECK(aclrtCreateStream(&stream) == ACL_ERROR_UNINITIALIZE);
  CHECK(!sentence().empty());
  CHECK(aclInit(nullptr) == ACL_SUCCESS);
  CHECK(aclInit(nullptr) == ACL_ERROR_REPEAT_INITIALIZE);
  // Everything is left alive, work in flight included; aclFinalize waits and frees.
  aclrtEvent event = nullptr;
  aclrtContext context = nullptr;
  CHECK(aclrtMalloc(&memory, 1 << 20, ACL_MEM_MALLOC_HUGE_FIRST) == ACL_SUCCESS);
  CHECK(aclrtCreateStream(&stream) == ACL_SUCCESS);
  CHECK(aclrtCreateEvent(&event) == ACL_SUCCESS);
  CHECK(aclrtCreateContext(&context, 0) == ACL_SUCCESS);
  CHECK(descendSetProduct("host") == ACL_SUCCESS);
  Problem problem(4096, 512);
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  CHECK(problem.first(&size, &executor) == 0);
  void* workspace = nullptr;
  CHECK(aclrtMalloc(&workspace, size + 64, ACL_MEM_MALLOC_HUGE_FIRST) == ACL_SUCCESS);
  CHECK(aclnnRmsNormGrad(workspace, size, executor, stream) == 0);
  CHECK(aclrtMemsetAsync(memory, 1 << 20, 7, 1 << 20, stream) == ACL_SUCCESS);
  CHECK(aclFinalize() == ACL_SUCCESS);
  CHECK(problem.dx.finite());
  CHECK(aclFinalize() == ACL_ERROR_REPEAT_FINALIZE);
  CHECK(aclrtSynchronizeStream(stream) == ACL_ERROR_UNINITIALIZE);
  CHECK(aclInit(nullptr) == ACL_SUCCESS);  // and again
  CHECK(aclrtSynchronizeStream(stream) == ACL_ERROR_INVALID_RESOURCE_HANDLE);
  CHECK(aclFinalize() == ACL_SUCCESS);
}

TEST_CASE("dead and foreign handles") {
  const Runtime runtime;
  const int64_t dims[] = {4};
  int local = 0;
  auto* foreign = reinterpret_cast<aclTensor*>(&local);
  aclTensor* tensor = aclCreateTensor(dims, 1, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, dims, 1, nullptr);
  CHECK(aclDestroyTensor(tensor) == 0);
  CHECK(aclDestroyTensor(tensor) == ACLNN_ERR_PARAM_INVALID);
  CHECK(aclDestroyTensor(foreign) == ACLNN_ERR_PARAM_INVALID);
  CHECK(aclDestroyTensor(nullptr) == 0);

  aclrtStream stream = nullptr;
  CHECK(aclrtCreateStream(&stream) == ACL_SUCCESS);
  CHECK(aclrtDestroyStream(stream) == ACL_SUCCESS);
  CHECK(aclrtDestroyStream(stream) == ACL_ERROR_INVALID_RESOURCE_HANDLE);
  CHECK(aclrtSynchronizeStream(&local) == ACL_ERROR_INVALID_RESOURCE_HANDLE);

  Problem problem;
  uint64_t size = 99;
  aclOpExecutor* executor = nullptr;
  CHECK(aclnnRmsNormGradGetWorkspaceSize(tensor, problem.x, problem.rstd, problem.gamma, problem.dx, problem.dgamma,
                                         &size, &executor) == ACLNN_ERR_PARAM_INVALID);
  CHECK(sentence().find("aclnnRmsNormGrad: dy") == 0);
  CHECK(size == 99);
  CHECK(executor == nullptr);
  CHECK(problem.first(nullptr, &executor) == ACLNN_ERR_PARAM_NULLPTR);
  CHECK(problem.first(&size, nullptr) == ACLNN_ERR_PARAM_NULLPTR);

  CHECK(problem.first(&size, &executor) == 0);
  std::vector<char> workspace(size + 1);
  CHECK(aclnnRmsNorm(workspace.data(), size, executor, nullptr) == ACLNN_ERR_PARAM_INVALID);  // another operator's
  CHECK(aclnnRmsNormGrad(workspace.data(), size, executor, stream) == ACLNN_ERR_RUNTIME_ERROR);
  CHECK(aclnnRmsNormGrad(workspace.data(), size, nullptr, nullptr) == ACLNN_ERR_PARAM_NULLPTR);
  if (size > 0) {
    CHECK(aclnnRmsNormGrad(nullptr, size, executor, nullptr) == ACLNN_ERR_PARAM_NULLPTR);
    CHECK(aclnnRmsNormGrad(workspace.data(), size - 1, executor, nullptr) == ACLNN_ERR_PARAM_INVALID);
  }
  CHECK(aclnnRmsNormGrad(workspace.data(), size, executor, nullptr) == 0);
  CHECK(aclrtSynchronizeStream(nullptr) == ACL_SUCCESS);
  CHECK(aclnnRmsNormGrad(workspace.data(), size, executor, nullptr) == ACLNN_ERR_PARAM_INVALID);  // spent
  CHECK(aclDestroyAclOpExecutor(executor) == ACLNN_ERR_PARAM_INVALID);
}

TEST_CASE("memory") {
  const Runtime runtime;
  void* memory = nullptr;
  char host[128] = {};
  CHECK(aclrtMalloc(&memory, 0, ACL_MEM_MALLOC_HUGE_FIRST) == ACL_ERROR_INVALID_PARAM);
  CHECK(aclrtMalloc(&memory, uint64_t{1} << 60, ACL_MEM_MALLOC_HUGE_FIRST) == ACL_ERROR_BAD_ALLOC);
  CHECK(aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST) == ACL_SUCCESS);
  CHECK(aclrtMemcpy(memory, 64, host, 64, ACL_MEMCPY_HOST_TO_DEVICE) == ACL_SUCCESS);
  CHECK(aclrtMemcpy(memory, 64, host, 65, ACL_MEMCPY_HOST_TO_DEVICE) == ACL_ERROR_INVALID_PARAM);
  CHECK(aclrtMemcpy(host, 128, memory, 128, ACL_MEMCPY_DEVICE_TO_HOST) == ACL_ERROR_INVALID_PARAM);
  CHECK(aclrtFree(host) != ACL_SUCCESS);
  CHECK(aclrtFree(nullptr) != ACL_SUCCESS);

  // A tensor may not pass the end of its allocation.
  const int64_t dims[] = {4, 64};
  aclTensor* beyond = aclCreateTensor(dims, 2, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, dims, 2, memory);
  Problem problem(4, 64);
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  CHECK(aclnnRmsNormGradGetWorkspaceSize(problem.dy, beyond, problem.rstd, problem.gamma, problem.dx, problem.dgamma,
                                         &size, &executor) == ACLNN_ERR_PARAM_INVALID);
  CHECK(sentence().find("64") != std::string::npos);
  CHECK(aclDestroyTensor(beyond) == 0);
  CHECK(aclrtFree(memory) == ACL_SUCCESS);
  CHECK(aclrtFree(memory) != ACL_SUCCESS);
}

TEST_CASE("a new address for an executor is the tensor's, too") {
  const Runtime runtime;
  Problem problem, other;
  other.dy.normal(11);
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  REQUIRE(problem.first(&size, &executor) == 0);
  CHECK(aclSetAclOpExecutorRepeatable(executor) == 0);
  const auto address = [](aclTensor* tensor) {
    void* found = nullptr;
    CHECK(aclGetRawTensorAddr(tensor, &found) == 0);
    return found;
  };
  // What is refused changes nothing.
  void* const before = address(problem.dy);
  CHECK(aclSetInputTensorAddr(nullptr, 0, problem.dy, other.dy.data()) != 0);
  CHECK(aclSetInputTensorAddr(executor, 4, problem.dy, other.dy.data()) != 0);
  CHECK(aclSetInputTensorAddr(executor, 2, problem.dy, other.dy.data()) != 0);  // rstd, of another shape
  CHECK(address(problem.dy) == before);

  CHECK(aclSetInputTensorAddr(executor, 0, problem.dy, other.dy.data()) == 0);
  CHECK(aclSetOutputTensorAddr(executor, 0, problem.dx, other.dx.data()) == 0);
  CHECK(aclSetTensorAddr(executor, 5, problem.dgamma, other.dgamma.data()) == 0);
  CHECK(address(problem.dy) == other.dy.data());
  CHECK(address(problem.dx) == other.dx.data());
  CHECK(address(problem.dgamma) == other.dgamma.data());
  CHECK(aclDestroyAclOpExecutor(executor) == 0);
  CHECK(problem.both(nullptr) == 0);  // a later first phase, with the tensors as they are now
  const uint64_t digest = other.digest();
  CHECK(other.both(nullptr) == 0);
  CHECK(other.digest() == digest);
}

TEST_CASE("a repeatable executor and new addresses") {
  const Runtime runtime;
  Problem problem, other;
  other.dy.normal(11), other.x.normal(12);
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  REQUIRE(problem.first(&size, &executor) == 0);
  CHECK(aclSetAclOpExecutorRepeatable(executor) == 0);
  std::vector<char> workspace(size + 1);
  const auto launch = [&] {
    CHECK(aclnnRmsNormGrad(workspace.data(), size, executor, nullptr) == 0);
    CHECK(aclrtSynchronizeStream(nullptr) == ACL_SUCCESS);
  };
  launch();
  const uint64_t once = problem.dx.digest();
  launch();
  CHECK(problem.dx.digest() == once);
  CHECK(aclSetInputTensorAddr(executor, 0, problem.dy, other.dy.data()) == 0);
  CHECK(aclSetInputTensorAddr(executor, 1, problem.x, other.x.data()) == 0);
  CHECK(aclSetOutputTensorAddr(executor, 0, problem.dx, other.dx.data()) == 0);
  CHECK(aclSetInputTensorAddr(executor, 4, problem.x, other.x.data()) != 0);  // there are four
  launch();
  CHECK(problem.dx.digest() == once);
  const uint64_t changed = other.dx.digest();
  CHECK(other.both(nullptr) == 0);
  CHECK(other.dx.digest() == changed);

  // In place, which may take more memory than the first phase asked for: not the caller's.
  Problem third(8, 64);
  REQUIRE(third.both(nullptr) == 0);
  const uint64_t expected = third.dgamma.digest();
  aclOpExecutor* moving = nullptr;
  REQUIRE(third.first(&size, &moving) == 0);
  CHECK(aclSetAclOpExecutorRepeatable(moving) == 0);
  for (Array* place : {&third.gamma, &third.dgamma}) {
    CHECK(aclSetOutputTensorAddr(moving, 1, third.dgamma, place->data()) == 0);
    CHECK_MESSAGE(aclnnRmsNormGrad(workspace.data(), size, moving, nullptr) == 0, sentence());
    CHECK(aclrtSynchronizeStream(nullptr) == ACL_SUCCESS);
    CHECK(place->digest() == expected);
    third.gamma.normal(4);
  }
  CHECK(aclDestroyAclOpExecutor(moving) == 0);
  CHECK(aclDestroyAclOpExecutor(executor) == 0);
  CHECK(aclnnRmsNormGrad(workspace.data(), size, executor, nullptr) == ACLNN_ERR_PARAM_INVALID);
}

TEST_CASE("a hundred threads on one stream, and each on its own") {
  const Runtime runtime;
  constexpr int kThreads = 100;
  Problem model;
  REQUIRE(model.both(nullptr) == 0);
  const uint64_t expected = model.dgamma.digest(model.dx.digest());
  aclrtStream shared = nullptr;
  REQUIRE(aclrtCreateStream(&shared) == ACL_SUCCESS);
  for (const bool own : {false, true}) {
    std::atomic<int> right{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        aclrtStream stream = shared;
        if (own && aclrtCreateStream(&stream) != ACL_SUCCESS) return;
        Problem problem;
        bool good = true;
        for (int i = 0; i < 3; ++i) {
          good = good && problem.both(stream) == 0 && problem.dgamma.digest(problem.dx.digest()) == expected;
          uint64_t size = 0;
          good = good && problem.first(&size, nullptr) == ACLNN_ERR_PARAM_NULLPTR && !sentence().empty();
        }
        if (own) good = good && aclrtDestroyStream(stream) == ACL_SUCCESS;
        right += good;
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(right == kThreads);
  }
  CHECK(aclrtDestroyStream(shared) == ACL_SUCCESS);
}

TEST_CASE("streams, events and waits") {
  const Runtime runtime;
  aclrtStream a = nullptr, b = nullptr;
  aclrtEvent begin = nullptr, end = nullptr;
  REQUIRE(aclrtCreateStream(&a) == ACL_SUCCESS);
  REQUIRE(aclrtCreateStream(&b) == ACL_SUCCESS);
  REQUIRE(aclrtCreateEvent(&begin) == ACL_SUCCESS);
  REQUIRE(aclrtCreateEvent(&end) == ACL_SUCCESS);
  std::vector<char> from(1 << 20, 3), to(1 << 20);
  CHECK(aclrtRecordEvent(begin, a) == ACL_SUCCESS);
  CHECK(aclrtMemcpyAsync(to.data(), to.size(), from.data(), from.size(), ACL_MEMCPY_DEVICE_TO_DEVICE, a) ==
        ACL_SUCCESS);
  CHECK(aclrtRecordEvent(end, a) == ACL_SUCCESS);
  CHECK(aclrtStreamWaitEvent(b, end) == ACL_SUCCESS);
  CHECK(aclrtMemsetAsync(from.data(), from.size(), 5, from.size(), b) == ACL_SUCCESS);  // after the copy has read it
  CHECK(aclrtSynchronizeStream(b) == ACL_SUCCESS);
  CHECK(to == std::vector<char>(1 << 20, 3));
  CHECK(from == std::vector<char>(1 << 20, 5));
  float milliseconds = -1;
  CHECK(aclrtEventElapsedTime(&milliseconds, begin, end) == ACL_SUCCESS);
  CHECK(milliseconds >= 0);
  CHECK(aclrtSynchronizeStreamWithTimeout(a, 10000) == ACL_SUCCESS);
  CHECK(aclrtDestroyEvent(begin) == ACL_SUCCESS);
  CHECK(aclrtDestroyEvent(end) == ACL_SUCCESS);
  CHECK(aclrtRecordEvent(end, a) == ACL_ERROR_INVALID_RESOURCE_HANDLE);
  Problem problem(2048, 256);
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  REQUIRE(problem.first(&size, &executor) == 0);
  std::vector<char> workspace(size + 1);
  CHECK(aclnnRmsNormGrad(workspace.data(), size, executor, a) == 0);
  CHECK(aclrtDestroyStream(a) == ACL_SUCCESS);  // waits for the work
  CHECK(problem.dx.finite());
  CHECK(aclrtDestroyStreamForce(b) == ACL_SUCCESS);
}

TEST_CASE("where the last call would work") {
  const Runtime runtime;
  uint64_t count = 0;
  std::thread([&] {
    CHECK(descendPortability(nullptr, 0, &count) == ACL_ERROR_FAILURE);  // this thread has called nothing
  }).join();
  Problem problem;
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  REQUIRE(problem.first(&size, &executor) == 0);
  CHECK(descendPortability(nullptr, 0, nullptr) == ACL_ERROR_INVALID_PARAM);
  CHECK(descendPortability(nullptr, 1, &count) == ACL_ERROR_INVALID_PARAM);
  REQUIRE(descendPortability(nullptr, 0, &count) == ACL_SUCCESS);
  REQUIRE(count == 8);
  descendVerdict verdicts[8];
  REQUIRE(descendPortability(verdicts, 8, &count) == ACL_SUCCESS);
  for (const descendVerdict& verdict : verdicts) {
    const std::string product = verdict.product;
    const bool absent = product == "atlas-200i-500-a2" || product == "atlas-training";
    CHECK(verdict.status == (absent ? ACLNN_ERR_INNER_FIND_KERNEL_ERROR : 0));
    CHECK((std::string(verdict.sentence).find("aclnnRmsNormGrad: ") == 0) == absent);
  }
  // descendPortability answers for a refused call, too.
  CHECK(aclnnRmsNormGradGetWorkspaceSize(problem.dy, problem.x, problem.rstd, nullptr, problem.dx, problem.dgamma,
                                         &size, &executor) == ACLNN_ERR_PARAM_NULLPTR);
  REQUIRE(descendPortability(verdicts, 1, &count) == ACL_SUCCESS);
  CHECK(verdicts[0].status == ACLNN_ERR_PARAM_NULLPTR);
  // Also where it had no room for its results.
  CHECK(problem.first(nullptr, &executor) == ACLNN_ERR_PARAM_NULLPTR);
  REQUIRE(descendPortability(verdicts, 1, &count) == ACL_SUCCESS);
  CHECK(verdicts[0].status == 0);
  CHECK(aclDestroyAclOpExecutor(executor) == 0);
}
