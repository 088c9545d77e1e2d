#include "runtime/parallel.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <utility>

#include "runtime/clock.h"
#include "runtime/distance.h"
#include "runtime/fp_environment.h"
#include "runtime/futex.h"
#include "runtime/immortal.h"
#include "runtime/machine.h"
#include "runtime/thread.h"

namespace descend {
namespace {

using std::chrono::nanoseconds;

// With less than this for each, a second thread costs more than it brings: 0.5 us where workers are awake.
constexpr int64_t kBytesPerThread = 64 << 10;
// And with less than this in all, where they sleep: 5 to 20 us, or more on a virtual machine. Of lent threads it is not
// known; they are often still awake from the framework's own work.
constexpr int64_t kInlineAsleep = 1 << 20;
constexpr int64_t kInlineLent = 512 << 10;
// And of each thread beside the caller, times all of them, where they are awake, but far: a region then costs 2.5 us
// and more, line by line.
constexpr int64_t kInlineFar = 512 << 10;
// With less than this in all, each thread has its chunks from the start: to share them out as they go takes longer than
// they can differ.
constexpr int64_t kFixedBelow = 512 << 10;
constexpr int kLoop = 8;  // regions in quick succession: more will come, and find awake who is woken now

// How long who waits stays awake. Waking up takes 50 us and more on a virtual machine: with less than that, a thread
// that once fell asleep comes late to every call of a loop.
constexpr nanoseconds kSpin = std::chrono::microseconds(100);
constexpr int kWakeAtOnce = 2;  // the caller wakes so many, each of them as many more
constexpr int kSlots = 64;      // callers that get help at the same time; more run alone

// A region's chunks, dealt out. Each thread begins with a share of its own, neighbouring chunks in order, and in every
// region with the same one: what it left in its core's caches it finds there again. Then it takes what others leave.
class Deal {
 public:
  void out(int64_t chunks, int threads) {
    used_ = std::min(threads, kMostShares);
    for (int i = 0; i < used_; ++i) {
      Share& share = shares_[static_cast<size_t>(i)];
      share.next.store(i * chunks / used_, std::memory_order_relaxed);
      share.end = (i + 1) * chunks / used_;
    }
    over_.store(false, std::memory_order_relaxed);
  }

  // Calls f(chunk) until no chunk is left or f returns false.
  template <class F>
  void take(int thread, F f) {
    for (int i = 0; i < used_; ++i) {
      Share& share = shares_[static_cast<size_t>((thread + i) % used_)];
      for (int64_t chunk; (chunk = share.next.fetch_add(1, std::memory_order_relaxed)) < share.end;) {
        if (!f(chunk)) return;
      }
    }
    over_.store(true, std::memory_order_relaxed);
  }

  int shares() const { return used_; }

  // Whether all chunks have been begun, as far as this thread can see.
  bool over() const { return over_.load(std::memory_order_relaxed); }

 private:
  static constexpr int kMostShares = 16;
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  std::array<Share, kMostShares> shares_;
  int used_ = 0;
  std::atomic<bool> over_{false};
};

// A region in progress, as its helpers see it: all that most of them need lies in one cache line, since on its way to
// another core each line takes a good part of what a small region does. Slots are never freed, so a late look at one is
// harmless.
struct Slot {
  // Who works here: helpers inside, whether the caller sleeps until the helpers have left, and seats still open. A
  // helper takes a seat before it reads anything else; the caller leaves only when nobody is inside and no seat is
  // open. Where chunks are fixed, each seat has a bit, and with it a share of them; else the seats are counted.
  static constexpr uint32_t kHelper = 1, kHelpers = 0xFFF;
  static constexpr uint32_t kAsleep = 0x1000;
  static constexpr uint32_t kFixed = 0x2000;
  static constexpr uint32_t kSeat = 0x4000, kSeats = ~uint32_t{0x3FFF};
  static constexpr int kMostFixed = 16;  // shares, the caller's included

  alignas(64) std::atomic<uint32_t> state{0};
  int core = -1;  // where the caller began
  detail::Chunk body = nullptr;
  void* context = nullptr;
  int64_t chunks = 0;  // where they are fixed
  int shares = 0;
  uint32_t regions = 0;         // so far
  Clock::time_point begin{};    // of a region that times its helpers; see Distance
  std::atomic<int32_t> way{0};  // nanoseconds until the first that was awake came; 0: none did

  Deal deal;  // where they are not

  static int seats(uint32_t state) {
    return (state & kFixed) != 0 ? std::popcount(state & kSeats) : static_cast<int>((state & kSeats) / kSeat);
  }
  static constexpr uint32_t fixed_seat(int share) { return kSeat << (share - 1); }

  // Of open seats, the one that a worker takes: its own share's if it can.
  static uint32_t seat_for(int worker, uint32_t state) {
    if ((state & kFixed) == 0) return kSeat;
    const uint32_t open = state & kSeats, own = worker + 1 < kMostFixed ? fixed_seat(worker + 1) : 0;
    return (open & own) != 0 ? own : open & -open;
  }
  static int share_of(uint32_t fixed_seat) { return std::countr_zero(fixed_seat / kSeat) + 1; }

  // Every so often, since a look at the clock takes a part of the time that it measures.
  void time_helpers() {
    constexpr uint32_t kEach = 8;
    begin = regions++ % kEach == 0 ? Clock::now() : Clock::time_point{};
    way.store(0, std::memory_order_relaxed);
  }
  void set_way() {
    const auto took = std::clamp<nanoseconds>(Clock::now() - begin, nanoseconds(1), std::chrono::seconds(1));
    int32_t none = 0;
    way.compare_exchange_strong(none, static_cast<int32_t>(took.count()), std::memory_order_relaxed);
  }

  void run_share(int share) const {
    const int64_t end = (share + 1) * chunks / shares;
    for (int64_t chunk = share * chunks / shares; chunk < end; ++chunk) body(context, chunk);
  }
};
static_assert(kMaxThreads <= Slot::kHelpers && kMaxThreads <= Slot::kSeats / Slot::kSeat);
static_assert(offsetof(Slot, deal) == 64);

struct Pool {
  std::array<Slot, kSlots> slots;
  alignas(64) std::atomic<uint64_t> free_slots{~uint64_t{0}};
  alignas(64) std::atomic<int> used_slots{0};  // the first ones; the others never were
  alignas(64) std::atomic<uint32_t> epoch{0};  // counts regions; idle workers sleep on it
  alignas(64) Distance distance;
  alignas(64) std::atomic<int> sleepers{0};
  std::atomic<int> workers{0};
  std::atomic<bool> stopping{false};

  std::mutex mutex;  // for what follows
  std::array<Thread, kMaxThreads> threads;
  bool exit_registered = false;
  Clock::time_point retry{};  // the system gave no thread: not again before this

  std::mutex settings_mutex;
  bool settings_known = false;
  detail::ThreadDefault settings;
  std::atomic<int> default_count{0};  // 0: not known yet
  std::atomic<int> chosen_count{0};   // 0: the default
  std::atomic<int> cores{1};
};

Immortal<Pool> pool;
thread_local bool in_region = false;
thread_local Team lent = nullptr;

// Of this thread's regions that are not worth waking anybody for: how many followed each other in quick succession, and
// when the last one ended.
struct Succession {
  int regions = 0;
  bool is_timed = false;  // the region that is in progress
  Clock::time_point end{};
};
thread_local Succession succession;

const detail::ThreadDefault& settings() {
  std::lock_guard lock(pool->settings_mutex);
  if (!pool->settings_known) {
    const int cores = usable_cores();
    pool->settings = detail::default_threads(std::getenv("DESCEND_NUM_THREADS"), std::getenv("OMP_NUM_THREADS"), cores);
    pool->settings_known = true;
    pool->cores.store(cores);
    pool->default_count.store(pool->settings.threads);
  }
  return pool->settings;
}

// Threads that a region is worth if all of them are awake.
int threads_if_awake(int64_t chunks, int64_t bytes) {
  return static_cast<int>(std::max<int64_t>(std::min({int64_t{num_threads()}, chunks, bytes / kBytesPerThread}), 1));
}

int awake_workers() {
  return pool->workers.load(std::memory_order_relaxed) - pool->sleepers.load(std::memory_order_relaxed);
}

// Whether a worker is awake who is not at work for another caller.
bool is_anyone_free() {
  int free = awake_workers();
  for (uint64_t taken = ~pool->free_slots.load(std::memory_order_relaxed); free > 0 && taken != 0; taken &= taken - 1) {
    const Slot& slot = pool->slots[static_cast<size_t>(std::countr_zero(taken))];
    free -= static_cast<int>(slot.state.load(std::memory_order_relaxed) & Slot::kHelpers);
  }
  return free > 0;
}

// Whether a region with so much to do must wait for somebody to wake up who would come too late.
bool is_better_alone(int64_t bytes) {
  if (lent != nullptr) return bytes < kInlineLent;
  return bytes < kInlineAsleep && !is_anyone_free();
}

// Whether more regions will follow so soon that workers, once awake, stay so. Where there are more of them than cores
// they never do.
bool is_in_loop() {
  if (succession.regions < kLoop) return false;
  static const int cores = usable_cores();
  return num_threads() <= cores;
}

// Whether threads would be too far from each other, for all that is known.
bool is_too_far(int threads, int64_t bytes) {
  return threads > 1 && lent == nullptr && bytes / threads * (threads - 1) < kInlineFar && pool->distance.is_far();
}

// Threads of a region that would have so many if all were awake and near.
int threads_now(int threads, int64_t bytes) {
  return threads > 1 && is_better_alone(bytes) && !is_in_loop() ? 1 : threads;
}

void run_slot(Slot& slot, int thread, bool until_stopped) {
  slot.deal.take(thread, [&](int64_t chunk) {
    slot.body(slot.context, chunk);
    return !until_stopped || !pool->stopping.load(std::memory_order_relaxed);
  });
}

// For the seats that a region has open beside the helpers that it has.
void wake_workers(int seats, int helpers) {
  const int asleep = pool->sleepers.load();
  if (asleep == 0) return;
  // A worker that is awake sees the epoch by itself, unless it is at work elsewhere.
  const bool others = std::popcount(~pool->free_slots.load(std::memory_order_relaxed)) > 1;
  const int awake = others ? 0 : pool->workers.load() - asleep - helpers;
  const int wanted = seats - std::max(awake, 0);
  if (wanted > 0) futex_wake(pool->epoch, std::min({wanted, asleep, kWakeAtOnce}));
}

// Takes a seat where one is open and works there; false if there is none. `called`: it was awake, and a region has just
// begun.
bool help(int worker, bool called) {
  const int used = pool->used_slots.load(std::memory_order_acquire);
  for (int i = 0; i < used; ++i) {
    // Each worker begins its search elsewhere, which spreads them over the callers.
    Slot& slot = pool->slots[static_cast<size_t>((worker + i) % used)];
    if (called && used == 1) __builtin_prefetch(&slot.state, 1);
    uint32_t state = slot.state.load(std::memory_order_relaxed);
    while ((state & Slot::kSeats) != 0) {
      const bool fixed = (state & Slot::kFixed) != 0;
      if (!fixed && slot.deal.over()) break;
      const uint32_t seat = Slot::seat_for(worker, state), seated = state - seat + Slot::kHelper;
      if (!slot.state.compare_exchange_weak(state, seated, std::memory_order_acquire, std::memory_order_relaxed))
        continue;
      if (called && slot.begin != Clock::time_point{}) slot.set_way();
      if ((seated & Slot::kSeats) != 0) wake_workers(Slot::seats(seated), static_cast<int>(seated & Slot::kHelpers));
      // After a pause the scheduler may wake a worker on the very core that the caller uses, and leave both there for
      // milliseconds. So the worker leaves, and sleeps elsewhere from then on.
      if (slot.core >= 0 && current_core() == slot.core) avoid_core(slot.core);
      {
        FixedFpEnvironment environment;
        if (fixed) {
          slot.run_share(Slot::share_of(seat));
        } else {
          // Where not all workers are wanted, the last ones would have no share.
          run_slot(slot, worker + 1 < slot.deal.shares() ? worker + 1 : Slot::seats(state), true);
        }
      }
      const uint32_t before = slot.state.fetch_sub(Slot::kHelper, std::memory_order_release);
      if ((before & Slot::kHelpers) == Slot::kHelper && (before & Slot::kAsleep)) futex_wake(slot.state, 1);
      return true;
    }
  }
  return false;
}

// Waits a little for the next region. True if one came.
bool spin(uint32_t seen) {
  // Spinning in the way of somebody who works would be worse than sleeping.
  if (awake_workers() + 1 > pool->cores.load(std::memory_order_relaxed)) return false;
  const auto end = Clock::now() + kSpin;
  do {
    for (int i = 0; i < 16; ++i) {
      spin_pause();
      if (pool->epoch.load(std::memory_order_relaxed) != seen) return true;
    }
  } while (Clock::now() < end);
  return false;
}

void worker_main(void* argument) {
  const int worker = static_cast<int>(reinterpret_cast<intptr_t>(argument));
  in_region = true;
  bool lively = true;  // regions came in quick succession: worth spinning for the next
  for (bool called = false;;) {
    const uint32_t seen = pool->epoch.load();
    if (pool->stopping.load()) return;
    const bool helped = help(worker, called);
    called = !helped && lively && spin(seen);
    if (helped || called) continue;
    pool->sleepers.fetch_add(1);
    const auto slept = Clock::now();
    while (pool->epoch.load() == seen) futex_wait(pool->epoch, seen);
    pool->sleepers.fetch_sub(1);
    lively = Clock::now() - slept < 2 * kSpin;
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
  (void)settings();  // learns the number of cores
  std::lock_guard lock(pool->mutex);
  count = pool->workers.load();
  if (count >= wanted || pool->stopping.load()) return count;
  const auto now = Clock::now();
  if (now < pool->retry) return count;
  if (!pool->exit_registered) pool->exit_registered = std::atexit(stop_workers) == 0;
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

Slot* take_slot() {
  uint64_t free = pool->free_slots.load(std::memory_order_relaxed);
  while (free != 0) {
    // Acquire: whoever used the slot before is done with it.
    if (pool->free_slots.compare_exchange_weak(free, free & (free - 1), std::memory_order_acquire)) {
      const int index = std::countr_zero(free);
      for (int used = pool->used_slots.load(std::memory_order_relaxed); used <= index;) {
        if (pool->used_slots.compare_exchange_weak(used, index + 1, std::memory_order_release)) break;
      }
      return &pool->slots[static_cast<size_t>(index)];
    }
  }
  return nullptr;
}

// Who has not come by now is not waited for. Of fixed chunks the caller takes one share after the other, as helpers do
// who are done with theirs.
void close_seats(Slot& slot) {
  for (uint32_t state = slot.state.load(std::memory_order_relaxed); (state & Slot::kSeats) != 0;) {
    const bool fixed = (state & Slot::kFixed) != 0;
    const uint32_t open = state & Slot::kSeats, late = fixed ? open & -open : open;
    if (!slot.state.compare_exchange_weak(state, state - late, std::memory_order_relaxed)) continue;
    if (!fixed) return;
    slot.run_share(Slot::share_of(late));
    state = slot.state.load(std::memory_order_relaxed);
  }
}

void wait_for_helpers(Slot& slot) {
  uint32_t state = slot.state.load(std::memory_order_acquire);
  if ((state & Slot::kHelpers) == 0) return;
  if (awake_workers() + 1 <= pool->cores.load(std::memory_order_relaxed)) {
    const auto end = Clock::now() + kSpin;
    do {
      for (int i = 0; i < 16; ++i) {
        spin_pause();
        state = slot.state.load(std::memory_order_acquire);
        if ((state & Slot::kHelpers) == 0) return;
      }
    } while (Clock::now() < end);
  }
  state = slot.state.fetch_or(Slot::kAsleep, std::memory_order_acquire) | Slot::kAsleep;
  while ((state & Slot::kHelpers) != 0) {
    futex_wait(slot.state, state);
    state = slot.state.load(std::memory_order_acquire);
  }
}

// A region on lent threads.
struct LentRegion {
  detail::Chunk body;
  void* context;
  Deal deal{};
  std::atomic<int> arrived{0};

  static void work(void* region) {
    auto& self = *static_cast<LentRegion*>(region);
    FixedFpEnvironment fixed;
    const bool nested = std::exchange(in_region, true);
    self.deal.take(self.arrived.fetch_add(1, std::memory_order_relaxed), [&](int64_t chunk) {
      self.body(self.context, chunk);
      return true;
    });
    in_region = nested;
  }
};

// Fork: the child has no workers, whatever they were at, and must be able to start its own.
void before_fork() {
  pool->mutex.lock();
  pool->settings_mutex.lock();
}

void after_fork_in_parent() {
  pool->settings_mutex.unlock();
  pool->mutex.unlock();
}

void after_fork_in_child() {
  for (Slot& slot : pool->slots) slot.state.store(0);
  pool->free_slots.store(~uint64_t{0});
  pool->sleepers.store(0);
  pool->workers.store(0);
  for (Thread& thread : pool->threads) thread.forget();
  after_fork_in_parent();
}

[[maybe_unused]] const int fork_handlers = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);

// A whole number from 1 up at the start of the text, taken off it; 0 if there is none.
int take_count(std::string_view& text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  int count = 0;
  while (!text.empty() && text.front() >= '0' && text.front() <= '9') {
    count = std::min(count * 10 + (text.front() - '0'), kMaxThreads + 1);
    text.remove_prefix(1);
  }
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  return count;
}

}  // namespace

int num_threads() {
  if (const int chosen = pool->chosen_count.load(std::memory_order_relaxed)) return chosen;
  if (const int known = pool->default_count.load(std::memory_order_relaxed)) return known;
  return settings().threads;
}

Team set_team(Team team) { return std::exchange(lent, team); }

void set_num_threads(int count) { pool->chosen_count.store(std::clamp(count, 0, kMaxThreads)); }

const Status& num_threads_status() { return settings().status; }

namespace detail {

ThreadDefault default_threads(const char* descend_num_threads, const char* omp_num_threads, int cores) {
  ThreadDefault result;
  result.threads = std::clamp(cores, 1, kMaxThreads);
  if (omp_num_threads != nullptr) {
    // A list gives one count for each level of nesting: the first is ours.
    std::string_view text = omp_num_threads;
    const int count = take_count(text);
    if (count > 0 && (text.empty() || text.front() == ',')) result.threads = std::min(result.threads, count);
  }
  if (descend_num_threads != nullptr && *descend_num_threads != '\0') {
    std::string_view text = descend_num_threads;
    const int count = take_count(text);
    if (count > 0 && count <= kMaxThreads && text.empty()) {
      result.threads = count;
    } else {
      result.status = failure(Code::kRuntimeError, "DESCEND_NUM_THREADS is \"", descend_num_threads,
                              "\", but must be a whole number from 1 to ", kMaxThreads, ".");
    }
  }
  return result;
}

Distance& distance() { return pool->distance; }

int useful_threads(int64_t chunks, int64_t bytes) {
  const int threads = threads_if_awake(chunks, bytes);
  return is_too_far(threads, bytes) ? 1 : threads_now(threads, bytes);
}

int begin_region(int64_t most_chunks, int64_t bytes) {
  if (in_region) return 1;
  const int threads = threads_if_awake(most_chunks, bytes);
  const bool far = is_too_far(threads, bytes);
  succession.is_timed = threads > 1 && bytes < kInlineAsleep && !far;
  if (far) return 1;
  if (succession.is_timed && is_better_alone(bytes)) {
    const bool soon = Clock::now() - succession.end < kSpin;
    succession.regions = soon ? std::min(succession.regions + 1, kLoop) : 0;
  }
  return threads_now(threads, bytes);
}

void run_region(int64_t chunks, int threads, int64_t bytes, Chunk body, void* context) {
  run_chunks(chunks, threads, bytes, body, context);
  if (succession.is_timed && !in_region) succession.end = Clock::now();
}

void run_chunks(int64_t chunks, int threads, int64_t bytes, Chunk body, void* context) {
  if (chunks <= 0) return;
  threads = static_cast<int>(std::min<int64_t>(threads, chunks));
  if (threads > 1 && !in_region && lent != nullptr) {
    LentRegion region{.body = body, .context = context};
    region.deal.out(chunks, threads);
    return lent(threads, LentRegion::work, &region);
  }
  FixedFpEnvironment environment;
  bool fixed = false;
  Slot* slot = nullptr;
  if (threads > 1 && !in_region) {
    __builtin_prefetch(&pool->epoch, 1);
    const int seats = std::min(threads - 1, ensure_workers(threads - 1));
    if (seats > 0) slot = take_slot();
    if (slot != nullptr) {
      fixed = bytes < kFixedBelow && seats < Slot::kMostFixed;
      slot->body = body;
      slot->context = context;
      slot->core = current_core();
      slot->chunks = chunks;
      slot->shares = seats + 1;
      if (!fixed) slot->deal.out(chunks, seats + 1);
      slot->time_helpers();  // last: what the shares' lines take to come is not the helpers' way
      const uint32_t open = fixed ? Slot::kFixed | (Slot::fixed_seat(seats + 1) - Slot::kSeat)
                                  : static_cast<uint32_t>(seats) * Slot::kSeat;
      slot->state.store(open, std::memory_order_release);
      pool->epoch.fetch_add(1);
      wake_workers(seats, 0);
    }
  }
  if (slot == nullptr) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) body(context, chunk);
    return;
  }

  in_region = true;
  fixed ? slot->run_share(0) : run_slot(*slot, 0, false);
  close_seats(*slot);
  in_region = false;
  wait_for_helpers(*slot);
  if (const int32_t way = slot->way.load(std::memory_order_relaxed)) {
    pool->distance.note(nanoseconds(way), Clock::now());
  }
  slot->state.store(0, std::memory_order_relaxed);
  pool->free_slots.fetch_or(uint64_t{1} << (slot - pool->slots.data()), std::memory_order_release);
}

}  // namespace detail
}  // namespace descend
