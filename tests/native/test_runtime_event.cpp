#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/stream.h"
#include "stream_tasks.h"

using namespace descend;
using namespace std::chrono_literals;

TEST_CASE("events in stream order") {
  Stream stream;
  auto event = std::make_shared<Event>();
  CHECK(!event->complete());  // never recorded
  CHECK(event->wait(0ms));
  CHECK(!event->time());
  stream.record(event);  // idle: at once
  CHECK(event->complete());
  REQUIRE(event->time());

  Gate gate;
  stream.submit(gate.task());
  stream.record(event);
  CHECK(!event->complete());
  CHECK(!event->time());
  CHECK(!event->wait(5ms));
  auto end = std::make_shared<Event>();
  stream.submit(large([] { std::this_thread::sleep_for(5ms); }));
  stream.record(end);
  gate.open();
  CHECK(event->wait());
  CHECK(end->wait(60s));
  REQUIRE(event->time());
  REQUIRE(end->time());
  CHECK(*end->time() - *event->time() >= 5ms);
  event->reset();
  CHECK(!event->complete());
  CHECK(event->wait(0ms));
  CHECK(!event->time());
}

TEST_CASE("a stream waits for another's event") {
  Stream producer, consumer;
  auto event = std::make_shared<Event>();
  Gate gate;
  std::atomic<int> value{0};
  producer.submit(gate.task());
  producer.submit(large([&] { value = 42; }));
  producer.record(event);
  consumer.wait(event);
  int seen = 0;
  consumer.submit(small([&] { seen = value; }));
  CHECK(seen == 0);
  event.reset();  // the pending wait keeps what it needs
  gate.open();
  CHECK(consumer.synchronize().ok());
  CHECK(seen == 42);
}

TEST_CASE("dropping what is pending ends a wait, and no other stream's") {
  Stream producer, consumer, patient;
  auto event = std::make_shared<Event>(), end = std::make_shared<Event>();
  Gate gate;
  producer.submit(gate.task());
  producer.record(event);
  std::atomic<int> dropped{0}, kept{0};
  for (int round = 0; round < 50; ++round) {
    consumer.wait(event);
    consumer.submit(small([&] { ++dropped; }));
    consumer.record(end);
    if (round == 0) patient.wait(event);
    if (round % 2 == 0) std::this_thread::sleep_for(1ms);  // its thread may have begun to wait
    consumer.drop_pending();
    CHECK(consumer.synchronize(60s).ok());
    CHECK(end->complete());
  }
  patient.submit(small([&] { ++kept; }));
  CHECK(patient.synchronize(5ms).code == Code::kStreamSyncTimeout);
  CHECK(!event->complete());
  CHECK(kept == 0);
  gate.open();
  CHECK(patient.synchronize().ok());
  CHECK(kept == 1);
  CHECK(dropped == 0);
}

TEST_CASE("a wait is for the record that was the latest when it was asked for") {
  Stream slow, fast, waiter;
  auto event = std::make_shared<Event>();
  Gate gate;
  std::atomic<bool> opened{false};
  slow.submit(gate.task());
  slow.record(event);
  waiter.wait(event);
  std::atomic<bool> early{false};
  waiter.submit(small([&] { early = !opened; }));
  fast.record(event);  // completes at once; the wait above is for the other record
  CHECK(event->complete());
  std::this_thread::sleep_for(5ms);
  opened = true;
  gate.open();
  CHECK(waiter.synchronize().ok());
  CHECK(!early);
}

TEST_CASE("streams that wait for each other in turns do not lock up") {
  Stream a, b;
  std::vector<int> order;
  auto ea = std::make_shared<Event>(), eb = std::make_shared<Event>();
  for (int i = 0; i < 300; ++i) {
    a.submit(i % 2 ? small([&, i] { order.push_back(2 * i); }) : large([&, i] { order.push_back(2 * i); }));
    a.record(ea);
    b.wait(ea);
    b.submit(i % 3 ? small([&, i] { order.push_back(2 * i + 1); }) : large([&, i] { order.push_back(2 * i + 1); }));
    b.record(eb);
    a.wait(eb);
  }
  std::thread other([&] { CHECK(b.synchronize().ok()); });
  CHECK(a.synchronize().ok());
  other.join();
  REQUIRE(order.size() == 600);
  for (int i = 0; i < 600; ++i) REQUIRE(order[static_cast<size_t>(i)] == i);
}

TEST_CASE("a ring of streams under many threads") {
  constexpr size_t kStreams = 6;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::shared_ptr<Event>> events;
  for (size_t i = 0; i < kStreams; ++i) {
    streams.push_back(std::make_unique<Stream>());
    events.push_back(std::make_shared<Event>());
  }
  std::atomic<int> count{0};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kStreams; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 200; ++i) {
        const size_t from = (t + i) % kStreams;
        Stream& stream = *streams[from];
        stream.wait(events[(from + i) % kStreams]);
        stream.submit(i % 2 ? small([&] { ++count; }) : large([&] { ++count; }));
        stream.record(events[from]);
        if (i % 32 == 0) CHECK(stream.synchronize(60s).ok());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  wait_for_all_streams();
  for (const auto& stream : streams) CHECK(stream->idle());
  CHECK(count == 200 * static_cast<int>(kStreams));
}
