// Ends in one of several ways with work in flight; see CMakeLists.txt. Exit status 0 is all that is asked for.
#include <atomic>
#include <chrono>
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

}  // namespace

int main(int count, char** arguments) {
  const std::string way = count > 1 ? arguments[1] : "";
  set_num_threads(4);
  if (way == "queued") {  // far more than anyone would wait for
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
  } else {
    return 2;
  }
  return 0;
}
