#include "kernels/schedule/cut.h"

#include <algorithm>
#include <cstdio>

#include "runtime/machine.h"
#include "runtime/parallel.h"

namespace descend::kernels {
namespace {

constexpr int64_t kTileBytes = int64_t{12} << 10;  // with as much of the result, half of a first-level cache
constexpr int64_t kLeastTile = 2;                  // at least; kernels work on so many side by side
constexpr int64_t kGroupBytes = int64_t{4} << 20;  // a part of a small last-level cache
constexpr int64_t kSmall = int64_t{64} << 10;      // bytes, or as much work, that are not worth a second thread
constexpr int64_t kPrefetch = int64_t{512} << 10;  // bytes of input that may be in a second-level cache
constexpr int64_t kMaxChunks = 64;
constexpr int64_t kMinChunkRows = 32;
constexpr int64_t kFewChunks = 8;     // fewer are evened out, for two threads, as far as kMaxGroupRows allows
constexpr int64_t kTakes = 8;         // of each thread: enough to even out their speeds
constexpr int64_t kSharingRows = 16;  // of each thread: with no more, to share parameters takes too long
constexpr int64_t kSplitBlocks = 4;   // of each thread, at least, where threads share such rows instead
constexpr int64_t kWholeTiles = 64;   // rows of one tile at least, where a chunk has more

// The first CPU's caches.
enum Cache { kFirst = 0, kSecond = 2, kLast = 3 };  // 1: of instructions

// The size of one; 0 if unknown. sysconf() knows what the package has, which on a virtual machine is more than what
// this CPU may use.
int64_t cache_bytes(Cache cache) {
  long kibibytes = 0;
#if defined(__linux__)
  char path[64];
  std::snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", cache);
  if (std::FILE* file = std::fopen(path, "r")) {
    if (std::fscanf(file, "%ldK", &kibibytes) != 1) kibibytes = 0;
    std::fclose(file);
  }
#endif
  return int64_t{kibibytes} << 10;
}

int64_t first_cache_bytes() {
  constexpr int64_t kUsual = int64_t{48} << 10;
  static const int64_t bytes = cache_bytes(kFirst);
  return bytes > 0 ? bytes : kUsual;
}

// Bytes that are worth keeping in the caches. The last one is shared, on a virtual machine with others' machines, and
// slow: of it each core counts on as much as its own second level holds.
int64_t kept_bytes() {
  const int64_t own = cache_bytes(kSecond), last = cache_bytes(kLast);
  if (own <= 0) return int64_t{8} << 20;
  const int64_t share = 2 * own * usable_cores();
  return last > 0 ? std::min(last / 2, share) : share / 2;
}

// What the last-level cache has room for: most of it, but no more than so many times what is worth keeping.
int64_t last_cache_bytes(int64_t most) {
  const int64_t kept = kept_bytes();
  return std::max(std::min(cache_bytes(kLast) / 3 * 2, most * kept), kept);
}

// Of what comes from memory: in_order, whether all does, with nothing left in the last-level cache by a call before.
Ask ask_of_memory([[maybe_unused]] bool in_order) {
#if defined(__x86_64__)
  if (__builtin_cpu_is("amd")) return in_order && !kAsksSecondLevel ? Ask::kInOrder : Ask::kSparing;
#endif
  return Ask::kAhead;
}

// A shorter row is not enough work, on Zen 5 less so than where the second-level cache is asked, as on Zen 4; and so
// much of one that does not stay in the first-level cache, with what else is in use, until it is read again that its
// neighbours may as well share the loads.
bool is_best_alone(int64_t row_bytes) {
  const int64_t least = int64_t{kAsksSecondLevel ? 2 : 10} << 10;
  return least <= row_bytes && row_bytes <= first_cache_bytes() / 3;
}

}  // namespace

RowCut cut_rows(int64_t rows, int64_t row_bytes) {
  const int64_t bytes = std::max<int64_t>(row_bytes, 1);
  RowCut cut;
  cut.tile = kLeastTile;
  while (cut.tile < kMaxTile && 2 * cut.tile * bytes <= kTileBytes) cut.tile *= 2;
  cut.chunk = std::max(ceil_div(rows, kMaxChunks), kMinChunkRows);
  if (rows * bytes <= kSmall) cut.chunk = std::max<int64_t>(rows, 1);
  const int64_t chunks = ceil_div(rows, cut.chunk);
  if (1 < chunks && chunks < kFewChunks) cut.chunk = ceil_div(rows, ceil_div(chunks, 2) * 2);
  cut.chunk = ceil_div(cut.chunk, kMaxGroupRows) * kMaxGroupRows;
  cut.chunks = std::max<int64_t>(ceil_div(rows, cut.chunk), 1);
  cut.ask = ask_for(rows * bytes, kPrefetch);
  cut.near = false;
  cut.alone = cut.ask >= Ask::kSparing && is_best_alone(bytes);
  return cut;
}

int64_t chunks_to_take(int64_t chunks) {
  return chunks < 2 * kTakes ? 1 : std::max<int64_t>(chunks / (kTakes * num_threads()), 1);
}

int64_t RowCut::chunks_taken() const { return chunks_to_take(chunks); }

RowCut cut_loose_rows(int64_t rows, int64_t row_bytes, int64_t work, int64_t least) {
  RowCut cut = cut_rows(rows, row_bytes);
  const int64_t threads = num_threads(), chunks = threads == 1 ? 1 : kTakes * threads;
  cut.chunk = std::max({ceil_div(rows, chunks), ceil_div(kSmall, work), std::min(least, ceil_div(rows, threads))});
  if (cut.chunk > kWholeTiles) cut.chunk = ceil_div(cut.chunk, kWholeTiles) * kWholeTiles;
  cut.chunks = ceil_div(rows, cut.chunk);
  return cut;
}

bool split_columns(int64_t rows, int64_t columns) {
  if (rows <= kMinChunkRows) return columns >= 2 * kBlock;  // one chunk, in many stripes
  return columns > kStripeColumns || (columns >= 4 * kBlock && rows < 8 * kMinChunkRows);
}

bool may_split_loose_columns(int64_t columns) { return columns >= 4 * kBlock; }

bool split_loose_columns(int64_t rows, int64_t columns, bool shares_parameters) {
  if (columns > kMostRowColumns) return true;
  if (!may_split_loose_columns(columns)) return false;
  if (rows < kMaxGroupRows) return true;
  const int64_t threads = num_threads(), blocks = blocks_in(columns);
  if (threads == 1) return false;
  return (rows < 2 * threads && blocks >= threads) ||
         (shares_parameters && rows <= kSharingRows * threads && blocks >= kSplitBlocks * threads);
}

int64_t group_rows(int64_t row_bytes) { return std::clamp<int64_t>(kGroupBytes / row_bytes, 1, kMaxGroupRows); }

int64_t first_cache_room() { return first_cache_bytes() / 3 * 2; }

bool exceeds_kept(int64_t bytes) {
  static const int64_t kept = kept_bytes();
  return bytes > kept;
}

bool streams_results(const Traffic& traffic) {
  return exceeds_kept(num_threads() == 1 ? 2 * traffic.results : traffic.results);
}

Ask ask_for(int64_t bytes, int64_t kept, int64_t in_order_beyond) {
  if (bytes <= kept) return Ask::kNothing;
  static const int64_t near = last_cache_bytes(5), most_of_last = cache_bytes(kLast) / 4 * 3;
  return bytes > near ? ask_of_memory(bytes > in_order_beyond * most_of_last) : Ask::kAhead;
}

bool asks_second_level() {
#if defined(__x86_64__)
  return __builtin_cpu_is("amdfam19h") != 0;  // Zen 3 and 4
#else
  return false;
#endif
}

bool stays_near(int64_t bytes) {
  static const int64_t most = last_cache_bytes(4);
  return !kAsksSecondLevel && bytes <= most;
}

bool exceeds_last_cache(int64_t bytes) {
  static const int64_t of_one = last_cache_bytes(3), of_more = last_cache_bytes(5);
  return bytes > (num_threads() == 1 ? of_one : of_more);
}

}  // namespace descend::kernels
