// Ends in one of several ways with work in flight; see CMakeLists.txt. Exit status 0 is all that is asked for.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/immortal.h"
#include "runtime/parallel.h"
#include "runtime/stream.h"

using namespace descend;
using namespace std::chrono_literals;

namespace {

constexpr int64_t kLarge = int64_t{1} << 30;
std::unique_ptr<Stream> static_stream;
Immortal<std::vector<std::unique_ptr<Stream>>> leaked;

Task work(std::chrono::milliseconds time) {
  return {[time] {
            const auto end = std::chrono::steady_clock::now() + time;
            std::atomic<int64_t> sum{0};
            while (std::chrono::steady_clock::now() < end) {
              parallel_for(64, kLarge, [&](int64_t chunk) { sum += chunk; });
            }
            return Status{};
          },
          kLarge};
}

// Made before the first stream, so that its destructor comes after the streams' threads were stopped.
struct AtEnd {
  ~AtEnd() {
    if (is_well && !is_well()) std::_Exit(1);
  }
  std::function<bool()> is_well;
};
AtEnd at_end;

// Three streams, each of which waits for the one before, and what each found done by then.
struct Chain {
  Chain() {
    // 200 ms in all: an exit begins before they are over, under valgrind on a busy machine, too.
    for (int i = 0; i < 20; ++i) streams[0].submit(counted(work(10ms), first));
    streams[0].record(events[0]);
    streams[0].submit(counted(work(10ms), first));
    for (size_t s : {1, 2}) {
      streams[s].wait(events[s - 1]);
      streams[s].submit(counted({[this, s] {
                                   seen[s] = s == 1 ? first.load() : seen[1].load();
                                   return Status{};
                                 },
                                 kLarge},
                                later));
      streams[s].record(events[s]);
    }
    std::this_thread::sleep_for(5ms);  // the threads of the last two have begun to wait
  }
  static Task counted(Task task, std::atomic<int>& count) {
    return {[run = std::move(task.run), &count] {
              Status status = run();
              ++count;
              return status;
            },
            kLarge};
  }
  bool in_order() const { return seen[2] >= 20 && later == 2; }

  Stream streams[3];
  std::shared_ptr<Event> events[3] = {std::make_shared<Event>(), std::make_shared<Event>(), std::make_shared<Event>()};
  std::atomic<int> first{0}, later{0}, seen[3]{};
};
Immortal<std::unique_ptr<Chain>> chain;
Immortal<std::vector<std::thread>> waiters;
std::atomic<int> right{0};

// The ways in which a destructor can wait for the end of the chain.
const std::pair<const char*, bool (*)()> kLateWays[] = {
    {"late_synchronize", [] { return (*chain)->streams[2].synchronize().ok() && (*chain)->in_order(); }},
    {"late_event", [] { return (*chain)->events[2]->wait() && (*chain)->in_order(); }},
    {"late_all",
     [] {
       wait_for_all_streams();
       return (*chain)->in_order() && (*chain)->first == 21;
     }},
    {"late_queries",
     [] {
       while (!(*chain)->events[1]->complete()) {
       }
       while (!(*chain)->streams[2].idle()) {
       }
       return (*chain)->in_order() && (*chain)->first == 20;
     }},
    {"late_timeouts",
     [] {
       int late = 0;
       Status status;
       do {
         status = (*chain)->streams[2].synchronize(1ms);
         late += status.code == Code::kStreamSyncTimeout;
       } while (status.code == Code::kStreamSyncTimeout);
       return status.ok() && late > 0 && (*chain)->in_order();
     }},
    {"late_dropped",
     [] {
       (*chain)->streams[1].drop_pending();
       return (*chain)->streams[2].synchronize().ok() && (*chain)->later == 1 && (*chain)->first < 20;
     }},
    {"late_new_work",
     [] {
       Chain again;
       return again.streams[2].synchronize().ok() && again.in_order() && (*chain)->later == 0;
     }},
    {"late_threads",
     [] {
       std::atomic<int> wrong{0};
       std::vector<std::thread> threads;
       for (int t = 0; t < 6; ++t) {
         threads.emplace_back([&, t] {
           if (t % 3 == 0) wrong += !(*chain)->events[2]->wait();
           if (t % 3 == 1) wrong += !(*chain)->streams[2].synchronize().ok();
           if (t % 3 == 2) wrong += !(*chain)->streams[1].synchronize(60s).ok() || !(*chain)->events[2]->wait(60s);
           wrong += !(*chain)->in_order();
         });
       }
       for (auto& thread : threads) thread.join();
       return wrong == 0;
     }},
};

}  // namespace

int main(int count, char** arguments) {
  const std::string way = count > 1 ? arguments[1] : "";
  set_num_threads(4);
  if (way == "queued") {  // far longer than a test waits
    leaked->push_back(std::make_unique<Stream>());
    for (int i = 0; i < 10000; ++i) leaked->back()->submit(work(20ms));
  } else if (way == "running") {
    leaked->push_back(std::make_unique<Stream>());
    leaked->back()->submit(work(200ms));
    std::this_thread::sleep_for(10ms);
  } else if (way == "static") {  // destroyed among the globals, after the threads were stopped
    static_stream = std::make_unique<Stream>();
    for (int i = 0; i < 1000; ++i) static_stream->submit(work(20ms));
  } else if (way == "blocked") {  // one stream's thread waits for an event in another's queue
    for (int i = 0; i < 2; ++i) leaked->push_back(std::make_unique<Stream>());
    auto event = std::make_shared<Event>();
    for (int i = 0; i < 100; ++i) (*leaked)[0]->submit(work(50ms));
    (*leaked)[0]->record(event);
    (*leaked)[1]->wait(event);
    (*leaked)[1]->submit(work(10ms));
    std::this_thread::sleep_for(10ms);
  } else if (way == "detached") {  // threads of the program's own go on using streams and regions during the exit
    for (int t = 0; t < 4; ++t) {
      std::thread([t] {
        Stream stream;
        for (;;) {
          stream.submit(work(1ms));
          if (t % 2 == 0) (void)stream.synchronize();
        }
      }).detach();
    }
    std::this_thread::sleep_for(50ms);
  } else if (way == "regions") {
    std::thread([] {
      for (;;) parallel_for(64, kLarge, [](int64_t) {});
    }).detach();
    std::this_thread::sleep_for(20ms);
  } else if (way == "waiting") {  // threads of the program's own wait when the exit begins; a destructor joins them
    *chain = std::make_unique<Chain>();
    for (const auto ask :
         {+[] { return (*chain)->events[2]->wait(); }, +[] { return (*chain)->streams[2].synchronize().ok(); },
          +[] { return (*chain)->streams[2].synchronize(60s).ok(); }}) {
      waiters->emplace_back([ask] { right += ask() && (*chain)->in_order(); });
    }
    at_end.is_well = [] {
      for (std::thread& waiter : *waiters) waiter.join();
      return right == 3;
    };
    std::this_thread::sleep_for(5ms);
  } else {
    for (const auto& [name, is_well] : kLateWays) {
      if (way == name) at_end.is_well = is_well;
    }
    if (!at_end.is_well) return 2;
    *chain = std::make_unique<Chain>();
  }
  return 0;
}
