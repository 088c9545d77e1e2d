#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "in_child.h"
#include "runtime/stream.h"
#include "stream_tasks.h"

using namespace descend;
using namespace std::chrono_literals;

TEST_CASE("a forked child can use inherited streams" * FORKS) {
  Stream idle, used, busy;
  used.submit(large([] {}));
  CHECK(used.synchronize().ok());
  auto event = std::make_shared<Event>();
  auto held = std::make_shared<int>(1);
  Gate gate;
  busy.submit(gate.task());
  busy.submit(small([held] {}));
  busy.record(event);
  used.wait(event);
  gate.reached();
  CHECK(in_child([&] {
          int count = 0;
          for (Stream* stream : {&idle, &used, &busy}) {
            if (!stream->idle()) return false;
            const Status status = stream->synchronize();
            if (status.ok() != (stream == &idle)) return false;  // the lost work is reported, once
            stream->submit(large([&] { ++count; }));
            stream->submit(small([&] { ++count; }));
            if (!stream->synchronize().ok()) return false;
          }
          Stream fresh;
          fresh.submit(large([&] { ++count; }));
          return fresh.synchronize().ok() && event->complete() && held.use_count() == 1 && count == 7;
        }) == 0);
  CHECK(!busy.idle());  // the parent's own are untouched
  gate.open();
  CHECK(busy.synchronize().ok());
  CHECK(used.synchronize().ok());
  CHECK(held.use_count() == 1);
}

TEST_CASE("forks in the midst of submissions and synchronisations" * FORKS_BESIDE_THREADS) {
  Stream stream, other;
  auto event = std::make_shared<Event>();
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::atomic<int> count{0};
      while (!stop) {
        stream.submit(t == 0 ? small([&] { ++count; }) : large([&] { ++count; }));
        stream.record(event);
        other.wait(event);
        other.submit(small([&] { ++count; }));
        if (t == 1) (void)stream.synchronize();
        if (t == 2) (void)other.synchronize(1ms);
        Stream passing;
        passing.submit(large([&] { ++count; }));
      }
      (void)stream.synchronize();
      (void)other.synchronize();
    });
  }
  for (int round = 0; round < 50; ++round) {
    CHECK(in_child([&] {
            (void)stream.synchronize();
            (void)other.synchronize();
            int count = 0;
            stream.submit(large([&] { ++count; }));
            stream.record(event);
            other.wait(event);
            other.submit(small([&] { ++count; }));
            if (!other.synchronize().ok() || !stream.synchronize().ok()) return false;
            wait_for_all_streams();
            return event->wait(1s) && count == 2;
          }) == 0);
  }
  stop = true;
  for (auto& thread : threads) thread.join();
}
