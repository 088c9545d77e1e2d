// The cost of the runtime itself: medians, in nanoseconds.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/memory.h"
#include "runtime/pages.h"
#include "runtime/parallel.h"
#include "runtime/stream.h"

using namespace descend;
using Clock = std::chrono::steady_clock;

namespace {

template <class Body, class Between>
void measure(const char* name, int rounds, int batch, Body&& body, Between&& between) {
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    between();
    const auto begin = Clock::now();
    for (int i = 0; i < batch; ++i) body();
    times.push_back(std::chrono::duration<double, std::nano>(Clock::now() - begin).count() / batch);
  }
  std::sort(times.begin(), times.end());
  const auto at = [&](double share) { return times[static_cast<size_t>(share * static_cast<double>(rounds - 1))]; };
  std::printf("%-52s median %9.0f   best tenth %9.0f   worst tenth %9.0f\n", name, at(0.5), at(0.1), at(0.9));
}

}  // namespace

int main() {
  constexpr int64_t kLarge = int64_t{1} << 30;
  const auto nothing = [] {};
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
  std::printf("threads: %d\n", num_threads());
  const auto region = [] { parallel_for(num_threads(), kLarge, [](int64_t) {}); };
  measure("region, hot", 2000, 50, region, nothing);
  measure("region, after 2 ms", 500, 1, region, pause);
  const auto busy = [] {
    parallel_for(num_threads(), kLarge, [](int64_t) {
      const auto end = Clock::now() + std::chrono::microseconds(50);
      while (Clock::now() < end) {
      }
    });
  };
  measure("region of 50 us a chunk, hot", 500, 10, busy, nothing);
  measure("region of 50 us a chunk, after 2 ms", 500, 1, busy, pause);
  measure("region on the caller's thread", 2000, 100, [] { parallel_for(4, 100, [](int64_t) {}); }, nothing);

  Stream stream;
  measure("try_run_inline", 2000, 1000, [&] { stream.try_run_inline(8, [] { return Status{}; }); }, nothing);
  measure("submit small, idle stream", 2000, 100, [&] { stream.submit({[] { return Status{}; }, 8}); }, nothing);
  measure("synchronize, idle stream", 2000, 100, [&] { (void)stream.synchronize(); }, nothing);
  measure(
      "submit large + synchronize", 3000, 1,
      [&] {
        stream.submit({[] { return Status{}; }, kLarge});
        (void)stream.synchronize();
      },
      nothing);
  measure(
      "submit large + synchronize, after 2 ms", 500, 1,
      [&] {
        stream.submit({[] { return Status{}; }, kLarge});
        (void)stream.synchronize();
      },
      pause);
  measure(
      "submit large + synchronize with a timeout", 3000, 1,
      [&] {
        stream.submit({[] { return Status{}; }, kLarge});
        (void)stream.synchronize(std::chrono::seconds(1));
      },
      nothing);
  measure(
      "100 large in a row + synchronize, each", 300, 1,
      [&] {
        for (int i = 0; i < 100; ++i) stream.submit({[] { return Status{}; }, kLarge});
        (void)stream.synchronize();
      },
      nothing);
  auto event = std::make_shared<Event>();
  measure("record on an idle stream", 2000, 100, [&] { stream.record(event); }, nothing);
  measure("wait_for_all_streams, idle", 2000, 100, [] { wait_for_all_streams(); }, nothing);

  int local = 0;
  measure("find_allocation, none live", 2000, 1000, [&] { (void)find_allocation(&local); }, nothing);
  std::vector<void*> live(1000);
  for (void*& pointer : live) (void)allocate(1000, &pointer);
  size_t next = 0;
  measure(
      "find_allocation, 1000 live", 2000, 1000, [&] { (void)find_allocation(live[next++ % live.size()]); }, nothing);
  measure(
      "allocate + release 1 KB", 2000, 100,
      [] {
        void* pointer = nullptr;
        (void)allocate(1000, &pointer);
        (void)release(pointer);
      },
      nothing);
  constexpr size_t kBytes = size_t{64} << 20;
  const auto touch = [](void* pages) {
    for (size_t i = 0; i < kBytes; i += 4096) static_cast<volatile char*>(pages)[i] = 1;
  };
  measure(
      "64 MB of pages, fresh, touched", 10, 1,
      [&] {
        void* const pages = take_pages(kBytes);
        touch(pages);
        give_pages(pages, kBytes);
      },
      [] { trim_pages(); });
  measure(
      "64 MB of pages, warm, touched", 30, 1,
      [&] {
        void* const pages = take_pages(kBytes);
        touch(pages);
        give_pages(pages, kBytes);
      },
      nothing);
  measure("take + give warm pages", 1000, 100, [] { give_pages(take_pages(1 << 20), 1 << 20); }, nothing);
  release_all_allocations();
}
