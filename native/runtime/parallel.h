// One small pool of threads for the whole process. The caller of parallel_for always works, pool threads only help.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

#include "runtime/distance.h"
#include "runtime/thread_count.h"

namespace descend {

// Threads that a framework lends: calls work(context) on up to `threads` of them at once, the caller's included, and
// returns when all calls have. Where its own threads are still awake from the call before, the pool's would only be in
// their way.
using Team = void (*)(int threads, void (*work)(void* context), void* context);
// From now on the regions that this thread begins run on the team; null: on the pool. Returns what it was.
Team set_team(Team team);

namespace detail {
using Chunk = void (*)(void* context, int64_t chunk);
void run_chunks(int64_t chunks, int threads, Chunk body, void* context);
// The latency that was measured between callers and their helpers.
Distance& distance();
// Threads that a region would get if it began now.
int useful_threads(int64_t chunks, int64_t bytes);
// The same for a region that begins now, and is counted. run_region must follow.
int begin_region(int64_t most_chunks, int64_t bytes);
void run_region(int64_t chunks, int threads, Chunk body, void* context);
}  // namespace detail

// Calls body(chunk) once for each of cut(threads) chunks, at most `most_chunks`, where threads is how many it gets.
// Each chunk runs under the engine's fixed floating-point environment. `bytes` is the cost of all chunks together: how
// many bytes could be moved in the same time. Small work runs on the caller's thread alone. The limit is higher where
// threads would first have to wake up, or are far from each other. Which thread runs a chunk is not fixed, so chunks
// must write to disjoint places. cut and body must not throw. May be called from several threads at once, from inside a
// chunk (then it runs inline), and in a forked child.
template <class Cut, class Body>
void parallel_for(int64_t most_chunks, int64_t bytes, Cut&& cut, Body&& body) {
  using B = std::remove_reference_t<Body>;
  const int threads = detail::begin_region(most_chunks, bytes);
  detail::run_region(
      cut(threads), threads, [](void* context, int64_t chunk) { (*static_cast<B*>(context))(chunk); },
      const_cast<void*>(static_cast<const void*>(std::addressof(body))));
}

// The same for work that is cut already.
template <class Body>
void parallel_for(int64_t chunks, int64_t bytes, Body&& body) {
  parallel_for(chunks, bytes, [chunks](int) { return chunks; }, body);
}

}  // namespace descend
