#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "runtime/parallel.h"
#include "runtime/stream.h"
#include "stream_tasks.h"

using namespace descend;
using namespace std::chrono_literals;
using std::chrono::steady_clock;

TEST_CASE("a small task on an idle stream runs on the caller's thread, a large one does not") {
  Stream stream;
  std::thread::id ran;
  stream.submit(small([&] { ran = std::this_thread::get_id(); }));
  CHECK(ran == std::this_thread::get_id());
  CHECK(stream.idle());
  std::atomic<bool> done{false};
  stream.submit(large([&] {
    ran = std::this_thread::get_id();
    done = true;
  }));
  while (!done) std::this_thread::yield();
  CHECK(stream.synchronize().ok());
  CHECK(ran != std::this_thread::get_id());

  int runs = 0;
  CHECK(stream.try_run_inline(100, [&] {
    ++runs;
    return Status{};
  }));
  CHECK(!stream.try_run_inline(kLarge, [&] {
    ++runs;
    return Status{};
  }));
  Gate gate;
  stream.submit(gate.task());
  CHECK(!stream.try_run_inline(100, [&] {
    ++runs;
    return Status{};
  }));
  gate.open();
  CHECK(stream.synchronize().ok());
  CHECK(runs == 1);
}

TEST_CASE("tasks run in order, none beside another") {
  Stream stream;
  std::vector<int> order;
  std::atomic<int> inside{0};
  int overlaps = 0;
  for (int i = 0; i < 3000; ++i) {
    const auto body = [&, i] {
      overlaps += inside.fetch_add(1);
      order.push_back(i);
      inside.fetch_sub(1);
    };
    stream.submit(i % 3 == 0 ? large(body) : small(body));
    if (i % 500 == 0) CHECK(stream.synchronize().ok());
  }
  CHECK(stream.synchronize().ok());
  CHECK(overlaps == 0);
  REQUIRE(order.size() == 3000);
  for (int i = 0; i < 3000; ++i) REQUIRE(order[static_cast<size_t>(i)] == i);
}

TEST_CASE("streams run side by side") {
  Stream first, second;
  std::atomic<int> met{0};
  const auto meet = [&] {
    ++met;
    while (met < 2) std::this_thread::yield();
  };
  first.submit(large(meet));
  second.submit(large(meet));
  CHECK(first.synchronize().ok());
  CHECK(second.synchronize().ok());
  CHECK(met == 2);
}

TEST_CASE("a failure is reported once, the first one, and the stream goes on") {
  Stream stream;
  for (int64_t bytes : {int64_t{100}, kLarge}) {
    int after = 0;
    stream.submit({[] { return failure(Code::kRuntimeError, "first"); }, bytes});
    stream.submit({[]() -> Status { throw std::runtime_error("second"); }, bytes});
    stream.submit({[&] {
                     ++after;
                     return Status{};
                   },
                   bytes});
    const Status status = stream.synchronize();
    CHECK(status.code == Code::kRuntimeError);
    CHECK(status.sentence == "first");
    CHECK(after == 1);
    CHECK(stream.synchronize().ok());

    stream.submit({[]() -> Status { throw std::bad_alloc(); }, bytes});
    const Status starved = stream.synchronize();
    CHECK(starved.sentence == "out of memory");
    CHECK(starved.no_memory);
    stream.submit({[]() -> Status { throw 7; }, bytes});
    CHECK(stream.synchronize().code == Code::kRuntimeError);
    stream.submit({nullptr, bytes});
    CHECK(!stream.synchronize().ok());
    CHECK(stream.synchronize().ok());
  }
  CHECK(stream.try_run_inline(1, []() -> Status { throw std::runtime_error("inline"); }));
  CHECK(stream.idle());
  CHECK(stream.synchronize().sentence == "inline");
  CHECK(stream.synchronize().ok());
}

TEST_CASE("timeouts") {
  Stream stream;
  CHECK(stream.synchronize(0ms).ok());
  CHECK(stream.synchronize(-1ms).ok());
  Gate gate;
  stream.submit(gate.task());
  bool ran = false;
  stream.submit(small([&] { ran = true; }));
  stream.submit({[] { return failure(Code::kRuntimeError, "kept"); }, 100});
  const auto begin = steady_clock::now();
  const Status late = stream.synchronize(20ms);
  const auto took = steady_clock::now() - begin;
  CHECK(late.code == Code::kStreamSyncTimeout);
  CHECK(late.sentence.find("20 ms") != std::string::npos);
  CHECK(late.sentence.find("3 of its tasks") != std::string::npos);
  CHECK(took >= 20ms);
  CHECK(took < 2s);
  CHECK(stream.synchronize(0ms).code == Code::kStreamSyncTimeout);
  CHECK(stream.synchronize(-5ms).code == Code::kStreamSyncTimeout);
  CHECK(!stream.idle());
  gate.open();
  CHECK(stream.synchronize(std::chrono::nanoseconds::max()).sentence == "kept");
  CHECK(ran);
  CHECK(stream.synchronize(1h).ok());
}

TEST_CASE("a synchronise with a timeout is not caught in a large task or in a wait") {
  Stream stream, other;
  Gate gate;
  auto event = std::make_shared<Event>();
  other.submit(gate.task());
  other.record(event);
  stream.wait(event);
  int after = 0;
  stream.submit(small([&] { ++after; }));
  CHECK(stream.synchronize(10ms).code == Code::kStreamSyncTimeout);
  CHECK(other.synchronize(10ms).code == Code::kStreamSyncTimeout);
  gate.open();
  CHECK(stream.synchronize().ok());
  CHECK(after == 1);
  CHECK(event->complete());
}

TEST_CASE("synchronise from many threads at once") {
  Stream stream;
  for (int round = 0; round < 30; ++round) {
    std::atomic<int> count{0};
    for (int i = 0; i < 20; ++i) {
      const auto body = [&] { ++count; };
      stream.submit(i % 2 ? large(body) : small(body));
    }
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 6; ++t) {
      threads.emplace_back([&, t] {
        const Status status = t % 2 ? stream.synchronize() : stream.synchronize(60s);
        if (!status.ok() || count != 20) ++wrong;
      });
    }
    for (auto& thread : threads) thread.join();
    CHECK(wrong == 0);
  }
}

TEST_CASE("of many threads that synchronise one gets the failure") {
  for (int round = 0; round < 100; ++round) {
    Stream stream;
    stream.submit({[] { return failure(Code::kRuntimeError, "once"); }, kLarge});
    std::atomic<int> failures{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) threads.emplace_back([&] { failures += !stream.synchronize().ok(); });
    for (auto& thread : threads) thread.join();
    CHECK(failures == 1);
  }
}

TEST_CASE("a hundred threads submit to one stream") {
  Stream stream;
  int64_t sum = 0;  // tasks never overlap, so this needs no lock
  std::vector<std::vector<int>> seen(100);
  std::vector<std::thread> threads;
  for (int t = 0; t < 100; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        const auto body = [&, t, i] {
          sum += i;
          seen[static_cast<size_t>(t)].push_back(i);
        };
        if (i % 5 == 0 && stream.try_run_inline(8, [&] {
              body();
              return Status{};
            })) {
          continue;
        }
        stream.submit(i % 7 ? small(body) : large(body));
        if (i % 50 == 0 && !stream.synchronize().ok()) sum = -1;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(stream.synchronize().ok());
  CHECK(sum == 100 * 4950);
  for (const auto& mine : seen) {
    REQUIRE(mine.size() == 100);
    for (int i = 0; i < 100; ++i) REQUIRE(mine[static_cast<size_t>(i)] == i);
  }
}

TEST_CASE("inline runs from many threads exclude each other, and synchronise waits for them") {
  Stream stream;
  int64_t count = 0;
  std::atomic<int64_t> expected{0};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 3000; ++i) {
        const auto body = [&] {
          ++count;
          return Status{};
        };
        if (!stream.try_run_inline(8, body)) stream.submit({body, 8});
        ++expected;
        if (i % 64 == 0 && !stream.synchronize(10s).ok()) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(stream.synchronize().ok());
  CHECK(count == 8 * 3000);
  CHECK(wrong == 0);
}

TEST_CASE("the closure is gone when the task is done") {
  Stream stream;
  for (int64_t bytes : {int64_t{1}, kLarge}) {
    auto held = std::make_shared<int>(1);
    stream.submit({[held] { return Status{}; }, bytes});
    CHECK(stream.synchronize().ok());
    CHECK(held.use_count() == 1);
  }
}

TEST_CASE("drop_pending drops what has not begun") {
  Stream stream;
  Gate gate;
  auto held = std::make_shared<int>(1);
  auto event = std::make_shared<Event>();
  auto never = std::make_shared<Event>();
  bool ran = false;
  stream.submit(gate.task());
  gate.reached();
  for (int i = 0; i < 10; ++i) stream.submit(small([held, &ran] { ran = true; }));
  stream.record(event);
  stream.submit(large([held, &ran] { ran = true; }));
  stream.drop_pending();
  CHECK(held.use_count() == 1);
  CHECK(!event->complete());
  CHECK(!stream.idle());
  CHECK(stream.synchronize(5ms).code == Code::kStreamSyncTimeout);  // the gate is still running
  int after = 0;
  stream.submit(small([&] { ++after; }));
  gate.open();
  CHECK(stream.synchronize().ok());
  CHECK(event->complete());
  CHECK(!ran);
  CHECK(after == 1);
  stream.drop_pending();
  CHECK(stream.idle());
}

TEST_CASE("synchronising beside dropped work waits for what came after it") {
  Stream stream;
  Gate gate;
  stream.submit(gate.task());
  gate.reached();
  for (int i = 0; i < 10; ++i) stream.submit(small([] {}));
  stream.drop_pending();  // counts as done only when the gate is
  std::atomic<int> after = 0;
  stream.submit(large([&] {
    std::this_thread::sleep_for(50ms);
    ++after;
  }));
  int seen = -1;
  std::thread waiter([&] {
    CHECK(stream.synchronize(60s).ok());  // which helps with small tasks only, and so waits for the stream's thread
    seen = after;
  });
  std::this_thread::sleep_for(20ms);
  gate.open();
  waiter.join();
  CHECK(seen == 1);
}

TEST_CASE("dropping while somebody synchronises") {
  for (int round = 0; round < 50; ++round) {
    Stream stream;
    std::atomic<int> running{0};
    for (int i = 0; i < 50; ++i) {
      stream.submit(large([&] {
        running = 1;
        std::this_thread::sleep_for(20us);
        running = 0;
      }));
    }
    std::thread waiter([&] {
      CHECK(stream.synchronize(60s).ok());
      CHECK(running == 0);
    });
    stream.drop_pending();
    waiter.join();
    CHECK(stream.idle());
  }
}

TEST_CASE("destroying a stream waits for its work") {
  std::atomic<int> count{0};
  {
    Stream stream;
    for (int i = 0; i < 20; ++i) {
      stream.submit(large([&] {
        std::this_thread::sleep_for(1ms);
        ++count;
      }));
    }
  }
  CHECK(count == 20);
  for (int i = 0; i < 200; ++i) {
    Stream stream;
    stream.submit(large([&] { ++count; }));
  }
  CHECK(count == 220);
}

TEST_CASE("wait_for_all_streams waits, and leaves the failures") {
  Stream a, b;
  std::atomic<int> count{0};
  for (int i = 0; i < 10; ++i) {
    a.submit(large([&] { ++count; }));
    b.submit(large([&] { ++count; }));
  }
  b.submit({[] { return failure(Code::kRuntimeError, "mine"); }, kLarge});
  wait_for_all_streams();
  CHECK(count == 20);
  CHECK(a.synchronize().ok());
  CHECK(b.synchronize().sentence == "mine");
}

TEST_CASE("streams come and go while others wait for all") {
  std::atomic<bool> stop{false};
  std::thread waiter([&] {
    while (!stop) wait_for_all_streams();
  });
  std::vector<std::thread> threads;
  std::atomic<int> count{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        Stream stream;
        stream.submit(large([&] { ++count; }));
        stream.submit(small([&] { ++count; }));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  stop = true;
  waiter.join();
  CHECK(count == 800);
}

TEST_CASE("parallel regions in the tasks of several streams") {
  set_num_threads(4);
  std::atomic<int64_t> sum{0};
  {
    std::vector<std::unique_ptr<Stream>> streams;
    for (int s = 0; s < 4; ++s) streams.push_back(std::make_unique<Stream>());
    for (int i = 0; i < 400; ++i) {
      streams[static_cast<size_t>(i % 4)]->submit(
          large([&] { parallel_for(10, kLarge, [&](int64_t chunk) { sum += chunk; }); }));
    }
    for (auto& stream : streams) CHECK(stream->synchronize().ok());
  }
  set_num_threads(0);
  CHECK(sum == 400 * 45);
}
