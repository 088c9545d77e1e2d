// How work on rows is cut, and which stores go past the caches.
//
// A tile is a few rows that are read twice, the second time from cache. A stripe is some rows whose column sums run in
// float. A chunk is some stripes, whose column sums are added in double to one slot; one thread computes it. A block is
// a stretch of a row's columns that is summed on its own. All follow from the shape alone, never from the machine,
// where they decide in which order sums are added.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/base.h"
#include "kernels/simd/element.h"
#include "runtime/parallel.h"

namespace descend::kernels {

// Columns in a block.
inline constexpr int64_t kBlock = 2048;

// Longer rows are always cut along the columns. One row of column sums, in float, must stay in a second-level cache.
inline constexpr int64_t kStripeColumns = 16384;

// Rows without column sums are cut where they are longer: of shorter ones, a few fit a second-level cache.
inline constexpr int64_t kMostRowColumns = 8 * kStripeColumns;

inline constexpr int64_t kMaxTile = 64;
inline constexpr int64_t kMaxGroupRows = 8;

// Work on a row of so many elements, read and written, in bytes that take as long to move: those of 16 bits take as
// much arithmetic as floats. `once`: what is done once for a row.
template <class T>
constexpr int64_t row_work(int64_t elements, int64_t once = 64) {
  return elements * static_cast<int64_t>(sizeof(Wide<T>)) + once;
}

inline int64_t blocks_in(int64_t columns) { return ceil_div(columns, kBlock); }

// Whether what is read later is worth asking for now. kSparing: and the places where requests wait are scarce, as on
// AMD's processors; few rows are to be read at a time, and one token after the other. kInOrder: and reads from memory
// must not be begun before those above them are served. On Zen 5 they would otherwise take all those places, and what
// lies in the second-level cache waits with them: two float32 streams in and one out ran at half the memory's speed.
enum class Ask { kNothing, kAhead, kSparing, kInOrder };

// Whether what comes from memory is best asked for into the second-level cache, as on AMD's Zen 4: norm gradients,
// whose arithmetic waits less for memory then, ran up to twice as fast. Zen 5 serves such requests more slowly.
bool asks_second_level();
inline const bool kAsksSecondLevel = asks_second_level();

// Whether elements of T are read so. 16 bits take so much arithmetic that it must not wait.
template <class T>
HWY_INLINE constexpr bool reads_sparingly(Ask ask) {
  return sizeof(T) >= sizeof(float) && ask >= Ask::kSparing;
}
template <class T>
HWY_INLINE constexpr bool reads_in_order(Ask ask) {
  return sizeof(T) >= sizeof(float) && ask == Ask::kInOrder;
}

// For `bytes` to be read, of which so many as `kept` would be near still. In order, where that is worth it, only beyond
// so many times what the last-level cache has room for: what it still has comes faster out of order.
Ask ask_for(int64_t bytes, int64_t kept, int64_t in_order_beyond = 1);

struct RowCut {
  int64_t tile;   // rows
  int64_t chunk;  // rows; only the last stripe may be short
  int64_t chunks;
  Ask ask;     // for the next tile, while this one is computed
  bool alone;  // whether a row, where requests are scarce, is best computed before the next is begun
  bool near;   // see stays_near(); false until it is set by who knows all that the call touches

  int64_t chunks_taken() const;
};

// How many of so many chunks a thread does best to take at a time: the work on one flows into that on the next. This,
// which changes no sum, is up to the machine.
int64_t chunks_to_take(int64_t chunks);

// The rows of a stripe. Of few rows the column sums go to double sooner, of 16 bits, whose own roundings are larger,
// less so: there its roundings are most of the error.
template <class T>
HWY_INLINE int64_t stripe_rows(int64_t rows) {
  if (rows <= 32) return sizeof(T) == 2 ? 8 : 2;
  if (rows < 256) return sizeof(T) == 2 ? 16 : 8;
  return rows < 1024 ? 16 : 32;
}

// row_bytes: what one row of all inputs takes.
RowCut cut_rows(int64_t rows, int64_t row_bytes);

// Rows without column sums, which know nothing of each other: the cut, which is up to the machine, changes no result.
// work: on one row. least: rows of a chunk that are worth what it takes to begin one.
RowCut cut_loose_rows(int64_t rows, int64_t row_bytes, int64_t work, int64_t least = 1);

// Whether rows are cut along the columns instead: they are long, or too few to give every thread some.
bool split_columns(int64_t rows, int64_t columns);

// The same of rows without column sums, whose cut is up to the machine. shares_parameters: cut into chunks of rows,
// they would read what other threads have just written, which is worth it for many rows alone.
bool split_loose_columns(int64_t rows, int64_t columns, bool shares_parameters);
bool may_split_loose_columns(int64_t columns);  // with some number of rows and of threads

// Rows that the threads share then at a time, so that the second pass finds them in a cache.
int64_t group_rows(int64_t row_bytes);

// Bytes that stay in a first-level cache, used row after row, beside what only passes through it.
int64_t first_cache_room();
inline const int64_t kFirstCacheRoom = first_cache_room();

// Whether `bytes`, all that a call touches, are more than the caches keep.
bool exceeds_kept(int64_t bytes);

// What a call moves: all of its bytes, and those of its results among them.
struct Traffic {
  int64_t bytes;
  int64_t results;
};

// Of a call that writes as much as it reads: so many bytes in all.
inline Traffic even_traffic(int64_t bytes) { return {bytes, bytes / 2}; }

// Whether results are better stored past the caches. It is they who decide, not what is read beside them: the next call
// reads them, or has its own in their place, as a backward pass has after its forward one, and finds that place in a
// cache or must fetch it. Two threads get results past the caches hardly faster than one does, but keep more in them.
bool streams_results(const Traffic& traffic);

// Whether the last-level cache still has, when a call comes again, all `bytes` that it touches. Not where the
// second-level cache is asked, as on Zen 4: there, what depends on it has not been measured.
bool stays_near(int64_t bytes);

// Whether a call touches so much more that this pays even by way of a copy, or where rows share lines: with one thread,
// which finds less of it in the last-level cache, sooner.
bool exceeds_last_cache(int64_t bytes);

}  // namespace descend::kernels
