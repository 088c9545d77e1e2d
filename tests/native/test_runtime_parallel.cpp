#include <doctest/doctest.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <cmath>
#include <csignal>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>
#include <type_traits>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "in_child.h"
#include "runtime/clock.h"
#include "runtime/distance.h"
#include "runtime/machine.h"
#include "runtime/parallel.h"

using namespace descend;

namespace {

constexpr int64_t kLarge = int64_t{1} << 30;  // bytes enough for every thread

struct Threads {
  explicit Threads(int count) { set_num_threads(count); }
  ~Threads() { set_num_threads(0); }
};

// True if run calls its argument once for every chunk.
template <class Run>
bool covers_by(int64_t chunks, Run run) {
  std::vector<int> times(static_cast<size_t>(chunks), 0);
  run([&](int64_t chunk) { ++times[static_cast<size_t>(chunk)]; });
  return std::all_of(times.begin(), times.end(), [](int count) { return count == 1; });
}

// True if every chunk ran once.
bool covers(int64_t chunks, int64_t bytes = kLarge) {
  return covers_by(chunks, [&](auto count) { parallel_for(chunks, bytes, count); });
}

// A region of so many threads, however little work it is.
template <class Body>
void run_on(int64_t chunks, int threads, Body&& body) {
  detail::run_chunks(
      chunks, threads,
      [](void* context, int64_t chunk) { (*static_cast<std::remove_reference_t<Body>*>(context))(chunk); }, &body);
}

bool covers_on(int64_t chunks, int threads) {
  return covers_by(chunks, [&](auto count) { run_on(chunks, threads, count); });
}

}  // namespace

// The first test, since a process counts its cores once.
TEST_CASE("a worker that may no longer run on all cores does not change how many there are" * FORKS) {
  if (usable_cores() < 2) return;
  CHECK(in_child([] {
          set_num_threads(2);
          // The worker has its part done long before the caller, and is the first to wait.
          const auto caller = std::this_thread::get_id();
          run_on(2, 2, [caller](int64_t) {
            if (std::this_thread::get_id() == caller) return std::this_thread::sleep_for(std::chrono::milliseconds(50));
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(static_cast<size_t>(current_core()), &one);
            sched_setaffinity(0, sizeof one, &one);
          });
          constexpr int64_t kMedium = int64_t{256} << 10;  // bytes that a worker is not woken for, but in a loop
          const auto alone = [] { return detail::useful_threads(16, kMedium) == 1; };
          for (int i = 0; i < 10000 && alone(); ++i) parallel_for(16, kMedium, [](int64_t) {});
          return !alone();
        }) == 0);
}

TEST_CASE("every chunk runs once, whatever the number of threads") {
  for (int threads : {1, 2, 3, 8, 64}) {
    Threads set(threads);
    CHECK(num_threads() == threads);
    for (int64_t chunks : {0, 1, 2, 3, 7, 63, 64, 65, 1000, 20000}) {
      CHECK(covers(chunks));
      CHECK(covers(chunks, 0));
    }
  }
}

TEST_CASE("work is cut for the threads that it gets") {
  for (int threads : {1, 2, 5}) {
    Threads set(threads);
    std::vector<std::atomic<int>> times(64);
    int given = 0;
    const auto cut = [&](int count) {
      given = count;
      return int64_t{3} * count;
    };
    parallel_for(64, kLarge, cut, [&](int64_t chunk) { ++times[static_cast<size_t>(chunk)]; });
    CHECK(given == threads);
    for (size_t i = 0; i < times.size(); ++i) CHECK(times[i] == (i < static_cast<size_t>(3 * threads) ? 1 : 0));
    parallel_for(64, 0, cut, [](int64_t) {});
    CHECK(given == 1);
    parallel_for(15, kLarge, cut, [](int64_t) {});
    CHECK(given == threads);
    parallel_for(3, kLarge, [&](int count) { return int64_t{given = count}; }, [](int64_t) {});
    CHECK(given == std::min(threads, 3));
  }
}

TEST_CASE("a negative number of chunks is none") {
  parallel_for(-3, kLarge, [](int64_t) { FAIL("no chunk to run"); });
}

TEST_CASE("the same chunks give the same bits with any number of threads") {
  const auto sum = [] {
    std::vector<float> partial(500);
    parallel_for(500, kLarge, [&](int64_t chunk) {
      float total = 0;
      for (int i = 1; i < 200; ++i) total += 1.0f / static_cast<float>(i + chunk);
      partial[static_cast<size_t>(chunk)] = total;
    });
    return std::accumulate(partial.begin(), partial.end(), 0.0f);
  };
  Threads set(1);
  const float one = sum();
  for (int threads : {2, 5, 64}) {
    set_num_threads(threads);
    CHECK(sum() == one);
  }
}

TEST_CASE("several threads take part, the caller among them") {
  Threads set(4);
  std::mutex mutex;
  std::set<std::thread::id> seen;
  std::atomic<int> inside{0};
  parallel_for(4, kLarge, [&](int64_t) {
    {
      std::lock_guard lock(mutex);
      seen.insert(std::this_thread::get_id());
    }
    // No thread leaves before all four have arrived, so four threads are needed.
    ++inside;
    while (inside < 4) std::this_thread::yield();
  });
  CHECK(seen.size() == 4);
  CHECK(seen.count(std::this_thread::get_id()) == 1);
}

TEST_CASE("each thread begins with the same share in every region, and then takes what others leave") {
  Threads set(2);
  const std::thread::id caller = std::this_thread::get_id();
  for (int times = 0; times < 20; ++times) {
    std::atomic<int64_t> first{-1};  // of the other thread
    std::atomic<int> by_caller{0};
    parallel_for(9, kLarge, [&](int64_t chunk) {
      int64_t none = -1;
      if (std::this_thread::get_id() != caller) {
        first.compare_exchange_strong(none, chunk);
        while (by_caller < 8) std::this_thread::yield();  // the caller has to do all the rest
        return;
      }
      const int done = by_caller;
      CHECK(chunk == (done < 4 ? done : done + 1));
      while (first < 0) std::this_thread::yield();
      ++by_caller;
    });
    CHECK(first == 4);
    CHECK(by_caller == 8);
  }
}

TEST_CASE("chunks run once each, whoever comes, however late") {
  for (int threads : {1, 2, 3, 8, 16, 17, 64}) {
    for (int64_t chunks : {0, 1, 2, 3, 7, 15, 16, 17, 64, 1000}) {
      for (int times = 0; times < 20; ++times) {
        CHECK(covers_on(chunks, threads));
        if (times % 5 == 0) std::this_thread::sleep_for(std::chrono::microseconds(50 * times));
      }
    }
  }
}

TEST_CASE("each worker takes its own chunks in every region, in whatever order they come" * FORKS) {
  CHECK(in_child([] {  // where there are no more workers than seats
          std::array<std::thread::id, 5> by, before;
          bool same = true;
          for (int times = 0; times < 50; ++times) {
            std::atomic<int> inside{0};
            run_on(5, 5, [&](int64_t chunk) {
              by[static_cast<size_t>(chunk)] = std::this_thread::get_id();
              ++inside;
              while (inside < 5) std::this_thread::yield();
            });
            same = same && (times == 0 || by == before);
            before = by;
          }
          return same;
        }) == 0);
}

TEST_CASE("chunks do not wait for workers that are busy elsewhere") {
  constexpr int kCallers = 3;
  std::atomic<int> inside{0};
  std::atomic<bool> over{false};
  std::vector<std::thread> callers;
  for (int i = 0; i < kCallers; ++i) {
    callers.emplace_back([&] {
      run_on(4, 4, [&](int64_t) {
        ++inside;
        while (!over) std::this_thread::yield();
      });
    });
  }
  while (inside < kCallers) std::this_thread::yield();
  for (int times = 0; times < 200; ++times) CHECK(covers_on(40, 4));
  over = true;
  for (std::thread& thread : callers) thread.join();
  CHECK(inside == 4 * kCallers);
}

TEST_CASE("chunks of workers that do not come are shared by all who did" * FORKS) {
  CHECK(in_child([] {
          std::atomic<int> kept{0}, begun{0};
          std::atomic<bool> over{false};
          std::thread other([&] {
            run_on(3, 3, [&](int64_t) {
              ++kept;
              while (!over) std::this_thread::yield();
            });
          });
          while (kept < 3) std::this_thread::yield();
          run_on(8, 4, [&](int64_t) {  // with the one worker that is free, two at a time
            const int together = begun++ / 2 * 2 + 2;
            while (begun < together) std::this_thread::yield();
          });
          over = true;
          other.join();
          return begun == 8;
        }) == 0);
}

TEST_CASE("threads are far once several helpers in a row came late, and for a while") {
  using namespace std::chrono_literals;
  const Clock::time_point now = Clock::now();
  Distance distance;
  CHECK(!distance.is_far(now));
  for (int i = 1; i < Distance::kInARow; ++i) distance.note(Distance::kFar, now);
  CHECK(!distance.is_far(now));
  distance.note(100ns, now);
  for (int i = 1; i < Distance::kInARow; ++i) distance.note(1s, now);
  CHECK(!distance.is_far(now));
  distance.note(Distance::kFar, now);
  CHECK(distance.is_far(now));
  CHECK(distance.is_far(now + Distance::kValid - 1ns));
  CHECK(!distance.is_far(now + Distance::kValid));
  distance.note(Distance::kFar, now + 1s);  // still: one is enough
  CHECK(distance.is_far(now + 1s));
  distance.note(Distance::kFar - 1ns, now + 1s);
  CHECK(!distance.is_far(now + 1s));
  CHECK(!distance.is_far());
}

TEST_CASE("threads that are far get no part of what takes them longer") {
  using namespace std::chrono_literals;
  constexpr int64_t kSmall = int64_t{380} << 10, kMore = int64_t{1} << 20;
  Threads set(2);
  Distance& distance = detail::distance();
  const auto caller = std::this_thread::get_id();
  const auto make = [&](bool far) {
    distance.note(0ns, Clock::now());
    for (int i = 0; far && i < Distance::kInARow; ++i) distance.note(1s, Clock::now() + 1h);
  };
  make(true);
  for (int times = 0; times < 100; ++times) {
    CHECK(detail::useful_threads(16, kSmall) == 1);
    CHECK(detail::useful_threads(16, kMore) == 2);
    parallel_for(16, kSmall, [&](int64_t) { CHECK(std::this_thread::get_id() == caller); });
  }
  set_num_threads(8);  // each has less to do
  CHECK(detail::useful_threads(16, kMore) == 8);
  CHECK(detail::useful_threads(16, int64_t{200} << 10) == 1);
  make(false);
}

TEST_CASE("threads that are near and awake get their part" * TIMED) {
  Threads set(2);
  int threads = 0;
  for (int times = 0; times < 1000 && threads < 2; ++times) {
    detail::distance().note(std::chrono::nanoseconds(0), Clock::now());
    CHECK(covers(16));  // a worker stays awake for a while
    threads = detail::useful_threads(16, int64_t{1000} << 10);
  }
  CHECK(threads == std::min(usable_cores(), 2));
}

TEST_CASE("small problems stay on the caller's thread") {
  Threads set(16);
  CHECK(detail::useful_threads(1000, 1 << 10) == 1);
  CHECK(detail::useful_threads(1, kLarge) == 1);
  CHECK(detail::useful_threads(3, kLarge) == 3);
  CHECK(detail::useful_threads(1000, kLarge) == 16);
  CHECK(detail::useful_threads(1000, INT64_MAX) == 16);
  set_num_threads(64);
  CHECK(detail::useful_threads(1000, 20 << 16) == 20);
  const auto caller = std::this_thread::get_id();
  parallel_for(100, 1 << 10, [&](int64_t) { CHECK(std::this_thread::get_id() == caller); });
}

TEST_CASE("a call from inside a chunk runs inline") {
  Threads set(4);
  std::atomic<int> ran{0};
  std::atomic<int> elsewhere{0};
  parallel_for(16, kLarge, [&](int64_t) {
    const auto outer = std::this_thread::get_id();
    parallel_for(16, kLarge, [&](int64_t) {
      ++ran;
      if (std::this_thread::get_id() != outer) ++elsewhere;
    });
  });
  CHECK(ran == 256);
  CHECK(elsewhere == 0);
}

TEST_CASE("a lent team runs the regions of the thread that it is lent to") {
  const Threads four(4);
  static std::atomic<int> teams{0};
  const Team team = [](int threads, void (*work)(void*), void* context) {
    ++teams;
    std::vector<std::thread> members;
    for (int i = 1; i < threads; ++i) members.emplace_back(work, context);
    work(context);
    for (std::thread& member : members) member.join();
  };
  const Team none = set_team(team);
  CHECK(!none);
  std::mutex mutex;
  std::set<std::thread::id> seen;
  std::atomic<int> nested{0};
  parallel_for(64, kLarge, [&](int64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    parallel_for(8, kLarge, [&](int64_t) { ++nested; });
    const std::lock_guard lock(mutex);
    seen.insert(std::this_thread::get_id());
  });
  CHECK(teams == 1);  // what is nested runs inline
  CHECK(nested == 64 * 8);
  CHECK(seen.size() > 1);
  CHECK(seen.count(std::this_thread::get_id()) == 1);
  CHECK(covers(1000));
  CHECK(teams == 2);
  std::thread([] { CHECK(covers(1000)); }).join();
  CHECK(teams == 2);
  CHECK(covers(1000, 1024));  // too small to be shared
  CHECK(teams == 2);
  const bool was_lent = set_team(nullptr) == team;
  CHECK(was_lent);
  CHECK(covers(1000));
  CHECK(teams == 2);
}

TEST_CASE("many callers share the pool") {
  Threads set(6);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 12; ++c) {
    callers.emplace_back([&, c] {
      for (int round = 0; round < 400; ++round) {
        if (!covers(1 + (round * 7 + c) % 97)) ++wrong;
        if (!covers_on(1 + (round * 5 + c) % 31, 1 + c % 6)) ++wrong;
      }
    });
  }
  for (auto& caller : callers) caller.join();
  CHECK(wrong == 0);
}

TEST_CASE("more callers than slots") {
  Threads set(3);
  std::atomic<int> wrong{0};
  std::atomic<int> inside{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 80; ++c) {
    callers.emplace_back([&] {
      std::atomic<int> ran{0};
      ++inside;
      parallel_for(4, kLarge, [&](int64_t) {
        while (inside < 80) std::this_thread::yield();  // all 80 regions are open at once
        ++ran;
      });
      if (ran != 4) ++wrong;
    });
  }
  for (auto& caller : callers) caller.join();
  CHECK(wrong == 0);
}

TEST_CASE("the number of threads may change while regions run") {
  std::atomic<bool> stop{false};
  std::thread changer([&] {
    for (int i = 0; !stop; ++i) {
      set_num_threads(1 + i % 9);
      std::this_thread::yield();
    }
  });
  int wrong = 0;
  for (int round = 0; round < 2000; ++round) wrong += !covers(50);
  stop = true;
  changer.join();
  set_num_threads(0);
  CHECK(wrong == 0);
}

TEST_CASE("what is not worth waking a thread for gets one where regions follow each other closely") {
  constexpr int64_t kMedium = int64_t{256} << 10;
  const auto pause = [] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // workers fall asleep
    detail::distance().note(std::chrono::nanoseconds(0), Clock::now());
  };
  const auto alone = [] { return detail::useful_threads(16, kMedium) == 1; };
  Threads set(std::min(usable_cores(), 2));
  pause();
  CHECK(alone());
  int regions = 0;  // the system may hold one of them up, and counting begins anew
  while (regions < 100000 && alone()) {
    parallel_for(16, kMedium, [](int64_t) {});
    ++regions;
  }
  if (usable_cores() > 1) {
    CHECK(regions >= 8);
    CHECK(regions < 100000);
  }
  CHECK(covers(16, kMedium));
  pause();
  CHECK(covers(16, kMedium));
  CHECK(alone());

  // Also where the work is cut for the threads that it gets, which is one chunk as long as it gets one.
  pause();
  regions = 0;
  for (int threads = 1; regions < 100000 && threads == 1; ++regions) {
    parallel_for(16, kMedium, [&](int given) { return int64_t{threads = given}; }, [](int64_t) {});
  }
  if (usable_cores() > 1) {
    CHECK(regions >= 8);
    CHECK(regions < 100000);
  }

  set_num_threads(usable_cores() + 1);  // a worker that would not stay awake is not woken
  pause();
  for (int i = 0; i < 100; ++i) {
    CHECK(alone());
    CHECK(covers(16, kMedium));
  }
}

TEST_CASE("nobody is woken for small problems while those who are awake work for another caller") {
  using namespace std::chrono_literals;
  constexpr int64_t kMedium = int64_t{256} << 10;
  Threads set(usable_cores() + 1);  // in no loop
  std::atomic<int> inside{0};
  std::atomic<bool> over{false};
  std::thread other([&] {
    parallel_for(2, kLarge, [&](int64_t) {
      ++inside;
      while (!over) std::this_thread::sleep_for(1ms);
    });
  });
  while (inside < 2) std::this_thread::yield();
  std::this_thread::sleep_for(20ms);  // the other workers fall asleep
  detail::distance().note(0ns, Clock::now());
  CHECK(detail::useful_threads(16, kMedium) == 1);
  CHECK(covers(16, kMedium));
  over = true;
  other.join();
}

TEST_CASE("after a pause the pool still answers") {
  Threads set(4);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::microseconds(100 * round));
    CHECK(covers(40));
  }
}

TEST_CASE("every chunk has the fixed floating-point environment, and the caller gets its own back") {
  for (int threads : {1, 4}) {
    Threads set(threads);
    for (int64_t bytes : {int64_t{0}, kLarge}) {
      CHECK(covers(64));  // workers exist
      std::fesetround(FE_UPWARD);
#if defined(__x86_64__)
      const unsigned before = _mm_getcsr();
      _mm_setcsr(before | 0x8040);  // flush subnormals
      const unsigned changed = _mm_getcsr() & ~0x3Fu;
#endif
      std::atomic<int> wrong{0};
      volatile float one = 1.0f, tiny = 1e-30f, small = 1e-38f, tenth = 0.1f;
      parallel_for(64, bytes, [&](int64_t) {
        if (one + tiny != one) ++wrong;      // rounded to nearest
        if (small * tenth == 0.0f) ++wrong;  // subnormals are kept
      });
      const int rounding = std::fegetround();
#if defined(__x86_64__)
      const unsigned after = _mm_getcsr() & ~0x3Fu;
      _mm_setcsr(before);
#endif
      std::fesetround(FE_TONEAREST);
      CHECK(wrong == 0);
      CHECK(rounding == FE_UPWARD);
#if defined(__x86_64__)
      CHECK(after == changed);
#endif
    }
  }
}

TEST_CASE("signals stay with the program's own threads") {
  Threads set(4);
  std::atomic<int> inside{0};
  std::atomic<int> open{0};
  const auto caller = std::this_thread::get_id();
  parallel_for(4, kLarge, [&](int64_t) {
    ++inside;
    while (inside < 4) std::this_thread::yield();
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
    if (std::this_thread::get_id() != caller && !sigismember(&blocked, SIGINT)) ++open;
  });
  CHECK(open == 0);
}

TEST_CASE("a forked child computes with threads of its own" * FORKS) {
  Threads set(4);
  CHECK(covers(1000));
  for (int round = 0; round < 20; ++round) {
    CHECK(in_child([] {
            // The barrier needs all four threads to be there.
            std::atomic<int> inside{0};
            parallel_for(4, kLarge, [&](int64_t) {
              ++inside;
              while (inside < 4) std::this_thread::yield();
            });
            return inside == 4 && covers(1000);
          }) == 0);
    CHECK(covers(100));
  }
}

TEST_CASE("a child forked while other threads are in regions computes, and so does its own child" *
          FORKS_BESIDE_THREADS) {
  Threads set(4);
  std::atomic<bool> stop{false};
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&] {
      while (!stop) covers(64);
    });
  }
  for (int round = 0; round < 40; ++round) {
    CHECK(in_child([] { return covers(500) && in_child([] { return covers(500); }) == 0 && covers(20); }) == 0);
  }
  stop = true;
  for (auto& caller : callers) caller.join();
}

TEST_CASE("fork from inside a chunk: neither side hangs" * FORKS_BESIDE_THREADS) {
  Threads set(3);
  std::atomic<int> good{0};
  parallel_for(12, kLarge, [&](int64_t chunk) {
    if (chunk % 4 == 0 && in_child([] { return covers(100, 0); }) == 0) ++good;
  });
  CHECK(good == 3);
}

TEST_CASE("without threads to be had, the caller does it alone" * FORKS) {
#if !defined(__SANITIZE_ADDRESS__)  // it needs a vast address space
  CHECK(in_child([] {
          const rlimit none{64 << 20, 64 << 20};  // no room for more than a few stacks
          setrlimit(RLIMIT_AS, &none);
          set_num_threads(200);
          return covers(1000) && covers(1000);
        }) == 0);
#endif
}
