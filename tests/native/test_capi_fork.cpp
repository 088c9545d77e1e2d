// Forks at any point of calls that other threads are in. A signal stops these threads wherever they are, in the
// library, in malloc or in the system, and the fork happens while they stand there. The child must be able to use the
// library, or to end.
#include <doctest/doctest.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <iostream>
#include <memory>
#include <thread>
#include <vector>

#include "capi_runtime.h"
#include "every_operator.h"
#include "in_child.h"

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

std::atomic<int> standing{0};
std::atomic<bool> released{true};

// A thread that holds what the fork waits for goes on after a while.
void stand_still(int) {
  ++standing;
  const auto end = Clock::now() + 5ms;
  while (!released && Clock::now() < end) sched_yield();
  --standing;
}

// Threads that make calls all the time, each on a stream of its own, until the end.
class Busy {
 public:
  explicit Busy(int count) {
    struct sigaction action{};
    action.sa_handler = stand_still;
    action.sa_flags = SA_RESTART;
    REQUIRE(sigaction(SIGUSR1, &action, &before_) == 0);
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this] { work(); });
    }
    while (rounds_ < 2 * count) std::this_thread::yield();
  }
  ~Busy() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    sigaction(SIGUSR1, &before_, nullptr);
    CHECK(wrong_ == 0);
  }

  // Runs `body` in a child that is forked while all threads stand still in the midst of something.
  template <class Body>
  int in_child_beside(Body&& body) {
    released = false;
    for (std::thread& thread : threads_) pthread_kill(thread.native_handle(), SIGUSR1);
    const auto end = Clock::now() + 5ms;
    while (standing < static_cast<int>(threads_.size()) && Clock::now() < end) sched_yield();
    std::cout.flush();  // a child that calls exit would write it again
    const pid_t child = fork();
    released = true;
    if (child == 0) {
      alarm(30);
      body();
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) return -2;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  std::vector<std::thread> threads_;
  std::atomic<bool> stop_{false};
  std::atomic<int> rounds_{0}, wrong_{0};
  struct sigaction before_{};

  // Both phases of every operator, and what a program does around them. Work is in flight most of the time.
  void work() {
    std::vector<Operator> all = operators();
    for (; !stop_; ++rounds_) {
      aclrtStream stream = nullptr;
      aclrtEvent event = nullptr;
      void* memory = nullptr;
      wrong_ += aclrtCreateStream(&stream) != 0 || aclrtCreateEvent(&event) != 0;
      wrong_ += aclrtMalloc(&memory, 4096, ACL_MEM_MALLOC_HUGE_FIRST) != 0;
      std::vector<std::unique_ptr<char[]>> workspaces;
      for (const Operator& op : all) {
        uint64_t size = 0;
        aclOpExecutor* executor = nullptr;
        wrong_ += op.first(&size, &executor) != 0;
        workspaces.push_back(std::make_unique<char[]>(size + 1));
        wrong_ += op.second(workspaces.back().get(), size, executor, stream) != 0;
        wrong_ += aclrtMemsetAsync(memory, 4096, 1, 4096, stream) != 0;
      }
      wrong_ += aclrtRecordEvent(event, stream) != 0 || aclrtSynchronizeEvent(event) != 0;
      wrong_ += aclrtSynchronizeStream(stream) != 0;
      wrong_ += aclrtFree(memory) != 0 || aclrtDestroyEvent(event) != 0 || aclrtDestroyStream(stream) != 0;
    }
  }
};

bool uses_the_library(aclrtStream inherited) {
  (void)aclrtSynchronizeDevice();  // what was in flight is reported here, once
  (void)aclrtSynchronizeStream(inherited);
  Problem problem;
  aclrtStream stream = nullptr;
  if (aclrtCreateStream(&stream) != 0) return false;
  for (aclrtStream one : {stream, inherited, aclrtStream{nullptr}}) {
    if (problem.both(one) != 0) return false;
  }
  return aclrtDestroyStream(stream) == 0;
}

}  // namespace

TEST_CASE("a child forked in the midst of other threads' calls uses the library" * FORKS_BESIDE_THREADS) {
  const Runtime runtime;
  aclrtStream stream = nullptr;
  REQUIRE(aclrtCreateStream(&stream) == 0);
  Problem large(256, 512);
  {
    Busy busy(3);
    for (int round = 0; round < 25; ++round) {
      Launch launch(large);
      CHECK(launch(stream) == 0);  // in flight while the process forks
      CHECK(busy.in_child_beside([&] { _exit(uses_the_library(stream) ? 0 : 1); }) == 0);
      CHECK(aclrtSynchronizeStream(stream) == 0);
    }
  }
  CHECK(aclrtDestroyStream(stream) == 0);
}

TEST_CASE("a child forked in the midst of other threads' calls ends well" * FORKS_BESIDE_THREADS) {
  const Runtime runtime;
  Busy busy(3);
  for (int round = 0; round < 6; ++round) {
    CHECK(busy.in_child_beside([] { _exit(aclFinalize()); }) == 0);
    CHECK(busy.in_child_beside([] { std::exit(0); }) == 0);
    CHECK(busy.in_child_beside([] {
      aclrtStream stream = nullptr;
      Problem large(256, 512);
      Launch launch(large);
      if (aclrtCreateStream(&stream) != 0 || launch(stream) != 0) std::exit(1);
      std::exit(0);  // with work of its own in flight
    }) == 0);
  }
}

TEST_CASE("a grandchild forked in the midst of a child's calls uses the library" * FORKS_BESIDE_THREADS) {
  const Runtime runtime;
  Busy busy(2);
  for (int round = 0; round < 2; ++round) {
    CHECK(busy.in_child_beside([] {
      int status = 0;
      {
        Busy own(2);
        for (int inner = 0; inner < 3 && status == 0; ++inner) {
          status = own.in_child_beside([] { _exit(uses_the_library(nullptr) ? 0 : 1); });
        }
      }
      _exit(status);
    }) == 0);
  }
}
