// Many threads at once in the C interface, aclFinalize meanwhile, and forks.
#include <doctest/doctest.h>
#include <limits.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "aclnnop/aclnn_rms_norm_grad.h"
#include "capi_runtime.h"
#include "in_child.h"

namespace {

// Runs body(i) on so many threads, which start together.
void together(int count, const std::function<void(int)>& body) {
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      ++ready;
      while (ready < count) std::this_thread::yield();
      body(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // which needs stacks of its own size
#else
constexpr bool kSanitized = false;
#endif

// A call whose dgamma lies in gamma's place, which takes more memory than the first phase asked for: the library's own.
bool in_place() {
  Problem problem;
  aclrtStream stream = nullptr;
  aclOpExecutor* executor = nullptr;
  uint64_t size = 0;
  bool right = aclrtCreateStream(&stream) == 0 && problem.both(stream) == 0;
  const uint64_t expected = problem.dgamma.digest();
  right = right && problem.first(&size, &executor) == 0 && aclSetAclOpExecutorRepeatable(executor) == 0;
  std::vector<char> workspace(size + 1);
  right = right && aclSetOutputTensorAddr(executor, 1, problem.dgamma, problem.gamma.data()) == 0 &&
          aclnnRmsNormGrad(workspace.data(), size, executor, stream) == 0 && aclDestroyAclOpExecutor(executor) == 0;
  return aclrtDestroyStream(stream) == 0 && right && problem.gamma.digest() == expected;
}

// One call of everything that a program does, each status allowed: the library may end at any moment. Where waiting
// fails for that, what was launched may be running still: its memory is then kept.
void go_through_everything(Problem& problem, std::vector<std::vector<char>>& kept) {
  aclrtStream stream = nullptr;
  aclrtEvent event = nullptr;
  aclrtContext context = nullptr;
  void* memory = nullptr;
  const int64_t length = 4;
  (void)aclrtSetDevice(0);
  (void)aclrtCreateStream(&stream);
  (void)aclrtCreateEvent(&event);
  (void)aclrtCreateContext(&context, 0);
  (void)aclrtMalloc(&memory, 4096, ACL_MEM_MALLOC_HUGE_FIRST);
  aclTensor* const tensor = aclCreateTensor(&length, 1, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, &length, 1, nullptr);
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  std::vector<char> workspace(1);
  if (problem.first(&size, &executor) == 0) {
    workspace.resize(size + 1);
    (void)aclnnRmsNormGrad(workspace.data(), size, executor, stream);
  }
  (void)aclrtRecordEvent(event, stream);
  (void)aclrtStreamWaitEvent(nullptr, event);
  if (stream != nullptr) (void)aclrtMemsetAsync(&workspace.back(), 1, 1, 1, stream);
  (void)aclrtSynchronizeEvent(event);
  int waited = aclrtSynchronizeStream(nullptr);
  waited |= aclrtSynchronizeDevice();
  waited |= aclrtSynchronizeStream(stream);
  if (waited != 0) kept.push_back(std::move(workspace));
  (void)aclDestroyTensor(tensor);
  (void)aclrtFree(memory);
  (void)aclrtDestroyEvent(event);
  (void)aclrtDestroyContext(context);
  if (stream != nullptr) (void)aclrtDestroyStream(stream);
  (void)aclGetRecentErrMsg();
}

}  // namespace

TEST_CASE("threads with small stacks" * doctest::skip(kSanitized)) {
  const Runtime runtime;
  pthread_attr_t attributes;
  REQUIRE(pthread_attr_init(&attributes) == 0);
  REQUIRE(pthread_attr_setstacksize(&attributes, std::max<size_t>(PTHREAD_STACK_MIN, 64 * 1024)) == 0);
  int status = -1;
  const auto body = [](void* result) -> void* {
    *static_cast<int*>(result) = aclrtSetDevice(1);
    return nullptr;
  };
  pthread_t thread;
  REQUIRE(pthread_create(&thread, &attributes, body, &status) == 0);
  CHECK(pthread_join(thread, nullptr) == 0);
  CHECK(status == ACL_ERROR_INVALID_DEVICE);
  CHECK(pthread_attr_destroy(&attributes) == 0);
}

TEST_CASE("scratch of a thread's own, to the last of its destructors") {
  struct Last {
    ~Last() {
      if (right != nullptr) *right += in_place();
    }
    std::atomic<int>* right = nullptr;
  };
  const Runtime runtime;
  std::atomic<int> right{0};
  together(4, [&](int) {
    thread_local Last last;  // made before the scratch is, and destroyed after it
    last.right = &right;
    right += in_place() && in_place();
  });
  CHECK(right == 8);
}

TEST_CASE("new addresses while launches are in flight") {
  const Runtime runtime;
  Problem problem(512, 512), other(512, 512);  // large enough for the stream's thread
  REQUIRE(problem.both(nullptr) == 0);
  const uint64_t expected = problem.dx.digest();
  aclrtStream stream = nullptr;
  REQUIRE(aclrtCreateStream(&stream) == 0);
  Launch launch(problem);
  CHECK(aclSetAclOpExecutorRepeatable(launch.executor) == 0);
  for (int i = 0; i < 300; ++i) {
    CHECK(aclSetInputTensorAddr(launch.executor, 0, problem.dy, (i % 2 == 0 ? other : problem).dy.data()) == 0);
    CHECK(launch(stream) == 0);
    if (i % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(10 * (i % 50)));
  }
  CHECK(aclrtSynchronizeStream(stream) == 0);
  CHECK(problem.dx.digest() == expected);
  CHECK(aclDestroyAclOpExecutor(launch.executor) == 0);
  CHECK(aclrtDestroyStream(stream) == 0);
}

TEST_CASE("of many threads that destroy one object one succeeds") {
  const Runtime runtime;
  Problem problem;
  for (int round = 0; round < 50; ++round) {
    aclrtStream stream = nullptr;
    aclrtEvent event = nullptr;
    void* memory = nullptr;
    const int64_t length = 4;
    REQUIRE(aclrtCreateStream(&stream) == 0);
    REQUIRE(aclrtCreateEvent(&event) == 0);
    REQUIRE(aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST) == 0);
    aclTensor* const tensor = aclCreateTensor(&length, 1, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, &length, 1, nullptr);
    Launch launch(problem);
    std::vector<char> block(2 << 20);
    CHECK(aclrtMemsetAsync(block.data(), block.size(), 1, block.size(), stream) == 0);
    CHECK(aclrtRecordEvent(event, stream) == 0);
    std::atomic<int> done[5] = {};
    together(4, [&](int) {
      done[0] += aclrtDestroyEvent(event) == 0;
      done[1] += aclrtDestroyStream(stream) == 0;
      done[2] += aclrtFree(memory) == 0;
      done[3] += aclDestroyTensor(tensor) == 0;
      done[4] += aclDestroyAclOpExecutor(launch.executor) == 0;
    });
    for (const auto& count : done) CHECK(count == 1);
    CHECK(aclrtSynchronizeDevice() == 0);
  }
}

TEST_CASE("of many threads that launch one executor one succeeds, with a repeatable one all") {
  const Runtime runtime;
  Problem problem, model;
  REQUIRE(model.both(nullptr) == 0);
  for (const bool repeatable : {false, true}) {
    for (int round = 0; round < 30; ++round) {
      Launch launch(problem);
      if (repeatable) REQUIRE(aclSetAclOpExecutorRepeatable(launch.executor) == 0);
      std::atomic<int> launched{0}, refused{0};
      together(8, [&](int) {  // all on the default stream, one behind the other
        const int status = launch(nullptr);
        launched += status == 0;
        refused += status == ACLNN_ERR_PARAM_INVALID;
      });
      CHECK(aclrtSynchronizeStream(nullptr) == 0);
      CHECK(launched == (repeatable ? 8 : 1));
      CHECK(launched + refused == 8);
      CHECK(problem.digest() == model.digest());
      CHECK(aclDestroyAclOpExecutor(launch.executor) == (repeatable ? 0 : ACLNN_ERR_PARAM_INVALID));
    }
  }
}

TEST_CASE("one repeatable executor launched, moved, asked about and destroyed by several threads") {
  const Runtime runtime;
  Problem problem, other;
  std::memcpy(other.x.data(), problem.x.data(), problem.x.bytes());
  std::memcpy(other.dy.data(), problem.dy.data(), problem.dy.bytes());
  REQUIRE(other.both(nullptr) == 0);
  const uint64_t expected = other.digest();
  for (int round = 0; round < 20; ++round) {
    Launch launch(problem);
    REQUIRE(aclSetAclOpExecutorRepeatable(launch.executor) == 0);
    std::atomic<int> wrong{0};
    together(6, [&](int i) {
      for (int k = 0; k < 20; ++k) {
        int status = 0;
        if (i < 3) {
          status = launch(nullptr);
        } else if (i < 5) {
          Problem& which = (i + k) % 2 == 0 ? problem : other;
          Array& input = i == 3 ? which.dy : which.x;
          status = aclSetInputTensorAddr(launch.executor, i - 3, input, input.data());
        } else {
          status = aclSetAclOpExecutorRepeatable(launch.executor);
        }
        wrong += status != 0 && status != ACLNN_ERR_PARAM_INVALID;
        if (i == 0 && k == 15) (void)aclDestroyAclOpExecutor(launch.executor);
      }
    });
    CHECK(wrong == 0);
    CHECK(aclrtSynchronizeStream(nullptr) == 0);
    CHECK(problem.digest() == expected);
  }
}

TEST_CASE("each thread has its own sentence, and the last one that failed") {
  const Runtime runtime;
  REFUSED(ACL_ERROR_INVALID_DEVICE, "aclrtSetDevice", aclrtSetDevice(7));
  const std::string mine = sentence();
  together(16, [&](int i) {
    CHECK(sentence().empty());
    for (int k = 0; k < 50; ++k) {
      CHECK(aclrtSetDevice(100 + i) == ACL_ERROR_INVALID_DEVICE);
      CHECK(sentence().find("device " + std::to_string(100 + i) + " ") != std::string::npos);
    }
  });
  CHECK(sentence() == mine);
}

TEST_CASE("a hundred threads use streams that others destroy") {
  const Runtime runtime;
  std::atomic<void*> streams[4] = {};
  for (auto& stream : streams) {
    aclrtStream made = nullptr;
    REQUIRE(aclrtCreateStream(&made) == 0);
    stream = made;
  }
  std::atomic<int> wrong{0};
  together(100, [&](int i) {
    Problem problem;
    std::atomic<void*>& shared = streams[i % 4];
    for (int k = 0; k < 5; ++k) {
      void* const stream = shared;
      if (i < 8) {
        aclrtStream fresh = nullptr;
        wrong += aclrtCreateStream(&fresh) != 0;
        void* const old = shared.exchange(fresh);
        wrong += (k % 2 ? aclrtDestroyStream(old) : aclrtDestroyStreamForce(old)) != 0;
        continue;
      }
      Launch launch(problem);
      const int status = launch(stream);
      wrong += status != 0 && status != ACLNN_ERR_RUNTIME_ERROR;
      const int waited = aclrtSynchronizeStream(stream);
      wrong += waited != 0 && waited != ACL_ERROR_INVALID_RESOURCE_HANDLE;
      if (status != 0) (void)aclDestroyAclOpExecutor(launch.executor);
      (void)aclrtSynchronizeDevice();  // whoever has destroyed the stream waits for it; this one's memory goes now
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("the library ends and begins again beneath busy threads") {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      Problem problem;
      std::vector<std::vector<char>> kept;
      while (!stop) go_through_everything(problem, kept);
    });
  }
  for (int round = 0; round < 100; ++round) {
    CHECK(aclInit(nullptr) == 0);
    CHECK(descendSetProduct("host") == 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(aclFinalize() == 0);
    CHECK(aclFinalize() == ACL_ERROR_REPEAT_FINALIZE);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("a forked child can use the library, whatever other threads were doing" * FORKS_BESIDE_THREADS) {
  const Runtime runtime;
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      Problem problem;
      std::vector<std::vector<char>> kept;
      while (!stop) go_through_everything(problem, kept);
    });
  }
  for (int round = 0; round < 40; ++round) {
    CHECK(in_child([] {
            Problem problem;
            std::vector<std::vector<char>> kept;
            (void)aclrtSynchronizeDevice();
            go_through_everything(problem, kept);
            return problem.both(nullptr) == 0 && aclFinalize() == 0;
          }) == 0);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("a forked child can launch an executor, whoever was launching it" * FORKS_BESIDE_THREADS) {
  const Runtime runtime;
  Problem problem(64, 256);
  Launch launch(problem);
  REQUIRE(aclSetAclOpExecutorRepeatable(launch.executor) == 0);
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) (void)launch(nullptr);
  });
  int worst = 0;
  for (int round = 0; round < 20 && worst == 0; ++round) {
    worst = in_child([&] {
      (void)aclrtSynchronizeStream(nullptr);
      return launch(nullptr) == 0 && aclrtSynchronizeStream(nullptr) == 0;
    });
  }
  CHECK(worst == 0);
  stop = true;
  busy.join();
}
