#include "runtime/parallel.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>

#include "runtime/clock.h"
#include "runtime/distance.h"
#include "runtime/fp_environment.h"
#include "runtime/futex.h"
#include "runtime/immortal.h"
#include "runtime/machine.h"
#include "runtime/region.h"
#include "runtime/thread.h"
#include "runtime/work_shares.h"

namespace descend {
namespace {

using std::chrono::nanoseconds;

// Bytes of work for each thread. With less, a second thread costs more than it brings: 0.5 us where workers spin.
constexpr int64_t kBytesPerThread = 64 << 10;
// Bytes of a region below which it runs on the caller alone, if no worker spins. To wake a parked worker takes 5 to
// 20 us, and more on a virtual machine. Lent threads often spin still after the framework's own work.
constexpr int64_t kAloneIfParked = 1 << 20;
constexpr int64_t kAloneIfLent = 512 << 10;
// Bytes of all threads but the caller below which it runs alone, if their cores are far: a region costs 2.5 us or more
// then. docs/machines.md has what this and the other rules bring.
constexpr int64_t kAloneIfFar = 192 << 10;
// So many regions in quick succession are a loop: a worker that is woken for one spins until the next.
constexpr int kLoop = 8;

// How long a thread spins before it parks. A virtual machine takes 50 us or more to wake a thread: with a shorter time,
// a worker that has parked once comes late to every region of a loop.
constexpr nanoseconds kSpin = std::chrono::microseconds(100);
constexpr int kWakeAtOnce = 2;  // the caller wakes so many workers, and each of them as many more
constexpr int kRegions = 64;    // more callers at the same time run alone

static_assert(kMaxThreads <= Region::kWorkers && kMaxThreads <= Region::kOpenings / Region::kOpening);

struct Pool {
  std::array<Region, kRegions> regions;
  alignas(64) std::atomic<uint64_t> free_regions{~uint64_t{0}};
  alignas(64) std::atomic<int> used_regions{0};  // the first ones; the others never were
  alignas(64) std::atomic<uint32_t> epoch{0};    // counts regions; idle workers park on it
  alignas(64) Distance distance;
  alignas(64) std::atomic<int> parked{0};
  std::atomic<int> workers{0};
  std::atomic<bool> stopping{false};

  std::mutex mutex;  // for what follows
  std::array<Thread, kMaxThreads> threads;
  bool exit_registered = false;
  Clock::time_point retry{};  // the system gave no thread: not again before this
};

Immortal<Pool> pool;
thread_local bool in_region = false;
thread_local Team lent = nullptr;

// This thread's regions that are not worth waking a worker for: how many followed each other in quick succession.
struct Succession {
  int regions = 0;
  bool is_counted = false;  // the region in progress
  Clock::time_point end{};  // of the last one
};
thread_local Succession succession;

// Workers call this, too, and nothing catches what they throw. Without memory to find out, nobody spins.
int cores() noexcept {
  static std::atomic<int> known{0};  // no lock, which a fork might leave locked in the child
  try {
    if (known.load(std::memory_order_relaxed) == 0) known.store(usable_cores(), std::memory_order_relaxed);
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return known.load(std::memory_order_relaxed);
}

int spinning_workers() {
  return pool->workers.load(std::memory_order_relaxed) - pool->parked.load(std::memory_order_relaxed);
}

// Spins until done() or for kSpin; the last done(). Does not spin where that would take a core from a thread that
// works.
template <class Done>
bool spin_until(Done done) {
  if (spinning_workers() + 1 > cores()) return false;
  const auto end = Clock::now() + kSpin;
  do {
    for (int i = 0; i < 16; ++i) {
      spin_pause();
      if (done()) return true;
    }
  } while (Clock::now() < end);
  return false;
}

// --- how many threads a region gets ---

int threads_if_spinning(int64_t chunks, int64_t bytes) {
  return static_cast<int>(std::max<int64_t>(std::min({int64_t{num_threads()}, chunks, bytes / kBytesPerThread}), 1));
}

// Whether a worker spins that is not at work in another region.
bool is_a_worker_free() {
  int free = spinning_workers();
  uint64_t taken = ~pool->free_regions.load(std::memory_order_relaxed);
  for (; free > 0 && taken != 0; taken &= taken - 1) {
    const Region& region = pool->regions[static_cast<size_t>(std::countr_zero(taken))];
    free -= Region::workers(region.state.load(std::memory_order_relaxed));
  }
  return free > 0;
}

// Whether workers would come too late.
bool is_better_alone(int64_t bytes) {
  return lent != nullptr ? bytes < kAloneIfLent : bytes < kAloneIfParked && !is_a_worker_free();
}

// Whether workers, once woken, will spin from region to region. They do not if there are more threads than cores.
bool is_in_loop() { return succession.regions >= kLoop && num_threads() <= cores(); }

bool is_too_far(int threads, int64_t bytes) {
  return threads > 1 && lent == nullptr && bytes / threads * (threads - 1) < kAloneIfFar && pool->distance.is_far();
}

int threads_now(int threads, int64_t bytes) {
  return threads > 1 && is_better_alone(bytes) && !is_in_loop() ? 1 : threads;
}

// --- workers ---

void run_chunks_of(Region& region, int thread, bool until_stopped) {
  region.shares.take(thread, [&](int64_t chunk) {
    region.body(region.context, chunk);
    return !until_stopped || !pool->stopping.load(std::memory_order_relaxed);
  });
}

// Wakes parked workers for the openings of a region that has `joined` workers.
void wake_workers(int openings, int joined) {
  const int parked = pool->parked.load();
  if (parked == 0) return;
  // Spinning workers see the epoch by themselves, unless they are at work in another region.
  const bool others = std::popcount(~pool->free_regions.load(std::memory_order_relaxed)) > 1;
  const int spinning = others ? 0 : std::max(pool->workers.load() - parked - joined, 0);
  if (openings > spinning) futex_wake(pool->epoch, std::min({openings - spinning, parked, kWakeAtOnce}));
}

// Joins a region that has openings and works there; false if there is none. `was_spinning`: a region has just begun.
bool help(int worker, bool was_spinning) {
  const int used = pool->used_regions.load(std::memory_order_acquire);
  for (int i = 0; i < used; ++i) {
    // Each worker begins its search elsewhere, which spreads them over the callers.
    Region& region = pool->regions[static_cast<size_t>((worker + i) % used)];
    uint32_t state = region.state.load(std::memory_order_relaxed);
    while (Region::openings(state) > 0 && !region.shares.all_begun()) {
      const uint32_t joined = state - Region::kOpening + Region::kWorker;
      if (!region.state.compare_exchange_weak(state, joined, std::memory_order_acquire, std::memory_order_relaxed))
        continue;
      if (was_spinning && region.begin != Clock::time_point{}) region.measure_latency();
      if (Region::openings(joined) > 0) wake_workers(Region::openings(joined), Region::workers(joined));
      // Affinity: after a pause the scheduler may wake a worker on the caller's own core, and leave both there for
      // milliseconds. The worker moves to another core, and stays off this one.
      if (region.core >= 0 && current_core() == region.core) avoid_core(region.core);
      {
        FixedFpEnvironment environment;
        // Where not all workers are wanted, the last ones have no share of their own.
        const bool has_share = worker + 1 < region.shares.count();
        run_chunks_of(region, has_share ? worker + 1 : Region::openings(state), true);
      }
      const uint32_t before = region.state.fetch_sub(Region::kWorker, std::memory_order_release);
      if (Region::workers(before) == 1 && (before & Region::kCallerParked) != 0) futex_wake(region.state, 1);
      return true;
    }
  }
  return false;
}

void worker_main(void* argument) {
  const int worker = static_cast<int>(reinterpret_cast<intptr_t>(argument));
  in_region = true;
  bool spins = true;  // after a long time parked a worker does not: the next region is not expected soon
  for (bool was_spinning = false;;) {
    const uint32_t seen = pool->epoch.load();
    if (pool->stopping.load()) return;
    const bool helped = help(worker, was_spinning);
    const auto has_begun = [seen] { return pool->epoch.load(std::memory_order_relaxed) != seen; };
    was_spinning = !helped && spins && spin_until(has_begun);
    if (helped || was_spinning) continue;
    pool->parked.fetch_add(1);
    const auto parked = Clock::now();
    while (pool->epoch.load() == seen) futex_wait(pool->epoch, seen);
    pool->parked.fetch_sub(1);
    spins = Clock::now() - parked < 2 * kSpin;
  }
}

// At exit, and where the library is unloaded: no thread may be left in code or data that goes away.
void stop_workers() {
  std::lock_guard lock(pool->mutex);
  pool->stopping.store(true);
  pool->epoch.fetch_add(1);
  futex_wake(pool->epoch, kWakeAll);
  const int count = pool->workers.exchange(0);
  for (int i = 0; i < count; ++i) pool->threads[static_cast<size_t>(i)].join();
}

// Starts workers up to `wanted`; returns how many there are.
int ensure_workers(int wanted) {
  int count = pool->workers.load(std::memory_order_acquire);
  if (count >= wanted || pool->stopping.load()) return count;
  std::lock_guard lock(pool->mutex);
  count = pool->workers.load();
  const auto now = Clock::now();
  if (count >= wanted || pool->stopping.load() || now < pool->retry) return count;
  if (!pool->exit_registered) pool->exit_registered = std::atexit(stop_workers) == 0;
  cores();  // counted here: a worker that moved to another core may no longer run on all of them
  for (; count < wanted; ++count) {
    void* const argument = reinterpret_cast<void*>(static_cast<intptr_t>(count));
    if (!pool->threads[static_cast<size_t>(count)].start("descend-pool", worker_main, argument)) {
      pool->retry = now + std::chrono::seconds(1);
      break;
    }
  }
  pool->workers.store(count);
  return count;
}

// --- callers ---

Region* take_region() {
  uint64_t free = pool->free_regions.load(std::memory_order_relaxed);
  while (free != 0) {
    // Acquire: the caller that used the region before is done with it.
    if (!pool->free_regions.compare_exchange_weak(free, free & (free - 1), std::memory_order_acquire)) continue;
    const int index = std::countr_zero(free);
    int used = pool->used_regions.load(std::memory_order_relaxed);
    while (used <= index && !pool->used_regions.compare_exchange_weak(used, index + 1, std::memory_order_release)) {
    }
    return &pool->regions[static_cast<size_t>(index)];
  }
  return nullptr;
}

void wait_for_workers(Region& region) {
  const auto have_left = [&] { return Region::workers(region.state.load(std::memory_order_acquire)) == 0; };
  if (have_left() || spin_until(have_left)) return;
  uint32_t state = region.state.fetch_or(Region::kCallerParked, std::memory_order_acquire) | Region::kCallerParked;
  while (Region::workers(state) > 0) {
    futex_wait(region.state, state);
    state = region.state.load(std::memory_order_acquire);
  }
}

// A region on lent threads.
struct LentRegion {
  detail::Chunk body;
  void* context;
  WorkShares shares{};
  std::atomic<int> arrived{0};

  static void work(void* region) {
    auto& self = *static_cast<LentRegion*>(region);
    FixedFpEnvironment fixed;
    const bool nested = std::exchange(in_region, true);
    self.shares.take(self.arrived.fetch_add(1, std::memory_order_relaxed), [&](int64_t chunk) {
      self.body(self.context, chunk);
      return true;
    });
    in_region = nested;
  }
};

// Fork: the child has no workers, whatever they did, and must be able to start its own.
void before_fork() { pool->mutex.lock(); }
void after_fork_in_parent() { pool->mutex.unlock(); }
void after_fork_in_child() {
  for (Region& region : pool->regions) region.state.store(0);
  pool->free_regions.store(~uint64_t{0});
  pool->parked.store(0);
  pool->workers.store(0);
  for (Thread& thread : pool->threads) thread.forget();
  pool->mutex.unlock();
}

[[maybe_unused]] const int fork_handlers = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);

}  // namespace

Team set_team(Team team) { return std::exchange(lent, team); }

namespace detail {

Distance& distance() { return pool->distance; }

int useful_threads(int64_t chunks, int64_t bytes) {
  const int threads = threads_if_spinning(chunks, bytes);
  return is_too_far(threads, bytes) ? 1 : threads_now(threads, bytes);
}

int begin_region(int64_t most_chunks, int64_t bytes) {
  if (in_region) return 1;
  const int threads = threads_if_spinning(most_chunks, bytes);
  const bool far = is_too_far(threads, bytes);
  succession.is_counted = threads > 1 && bytes < kAloneIfParked && !far;
  if (far) return 1;
  if (succession.is_counted && is_better_alone(bytes)) {
    const bool soon = Clock::now() - succession.end < kSpin;
    succession.regions = soon ? std::min(succession.regions + 1, kLoop) : 0;
  }
  return threads_now(threads, bytes);
}

void run_region(int64_t chunks, int threads, Chunk body, void* context) {
  run_chunks(chunks, threads, body, context);
  if (succession.is_counted && !in_region) succession.end = Clock::now();
}

void run_chunks(int64_t chunks, int threads, Chunk body, void* context) {
  if (chunks <= 0) return;
  threads = static_cast<int>(std::min<int64_t>(threads, chunks));
  if (threads > 1 && !in_region && lent != nullptr) {
    LentRegion region{.body = body, .context = context};
    region.shares.divide(chunks, threads);
    return lent(threads, LentRegion::work, &region);
  }
  FixedFpEnvironment environment;
  Region* region = nullptr;
  int workers = 0;
  if (threads > 1 && !in_region) {
    workers = std::min(threads - 1, ensure_workers(threads - 1));
    if (workers > 0) region = take_region();
  }
  if (region == nullptr) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) body(context, chunk);
    return;
  }

  region->body = body;
  region->context = context;
  region->core = current_core();
  region->shares.divide(chunks, workers + 1);
  region->begin_to_measure();  // last: what takes the caller time is no latency of the workers
  region->state.store(static_cast<uint32_t>(workers) * Region::kOpening, std::memory_order_release);
  pool->epoch.fetch_add(1);
  wake_workers(workers, 0);
  in_region = true;
  run_chunks_of(*region, 0, false);
  region->state.fetch_and(~Region::kOpenings, std::memory_order_relaxed);  // late workers are not waited for
  in_region = false;
  wait_for_workers(*region);
  if (const int32_t latency = region->latency.load(std::memory_order_relaxed)) {
    pool->distance.note(nanoseconds(latency), Clock::now());
  }
  region->state.store(0, std::memory_order_relaxed);
  pool->free_regions.fetch_or(uint64_t{1} << (region - pool->regions.data()), std::memory_order_release);
}

}  // namespace detail
}  // namespace descend
