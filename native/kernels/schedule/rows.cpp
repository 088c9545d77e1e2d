#include "kernels/schedule/rows.h"

#include <algorithm>

#include "kernels/schedule/cut.h"
#include "kernels/schedule/stores.h"
#include "runtime/parallel.h"

namespace descend::kernels {
namespace {

constexpr int64_t kAheadBytes = 8192;  // of all inputs: enough to keep a fast memory busy
constexpr int64_t kRunBytes = 1024;    // of a run of columns, in the type of the arithmetic

// Rows of results of so many bytes that begin anywhere are stored past the caches line by line, not by way of a stage,
// where all columns are read in order anyway. Where rows begin in the middle of words, the lines that they share are
// fetched, and they have to be longer: most so where the second-level cache is asked, as on Zen 4.
constexpr int64_t kLeastOfWords = 1280;
int64_t least_of_others() { return kAsksSecondLevel ? 4096 : 2560; }

constexpr int64_t kPiece = 1024;  // columns

// Rows whose columns are cut that are worked on at a time: all of them where they are few, or where the second pass
// finds them in the second-level cache.
constexpr int64_t kBytesTogether = int64_t{4} << 20;
constexpr int64_t kBytesInCache = int64_t{32} << 20;  // of more, groups are better small: two are in use at a time

int64_t stripe_of(int64_t rows, int64_t size) {
  return size == 2 ? stripe_rows<float16>(rows) : stripe_rows<float>(rows);
}

// Whether rows of so many bytes, aligned to quarters of lines, are stored past the caches without a stage. They must
// end at such a place, too, and must not be short: lines of short rows are not completed soon.
bool leaves_by_quarters(int64_t row) {
  constexpr int64_t kLeast = 512, kLeastOfQuarters = 1536;  // of one whose last line is not whole
  return row > kLeast && (row % 64 == 0 || (row % kQuarterLine == 0 && row >= kLeastOfQuarters));
}

// Whether rows that are not aligned are best stored by way of a stage. Where the second-level cache is asked, as on Zen
// 4, those that are not long are written so evenly that a stage would hold them up; on Zen 5 they took up to 1.36 times
// as long without it. In double a stage would take more of the stack than some threads have.
bool is_staged(int64_t columns, int64_t size, int64_t bytes) {
  constexpr int64_t kLeast = 512, kMost = 2560;
  const int64_t row = columns * size;
  const bool even = kAsksSecondLevel && kLeast < row && row < kMost;
  return size < 8 && !even && exceeds_last_cache(bytes) && (size > 2 || columns >= least_staged());
}

// Whether the threads share rows whose parameters change every few columns, of which a thread could take any number:
// there are too few to give every thread some.
bool shares_stretches(int64_t rows, int64_t columns) {
  return num_threads() > 1 && rows < 2 * num_threads() && may_split_loose_columns(columns);
}

// Whether rows that are kept, and are not aligned, go by way of a stage however long they are. Of 16 bits, whose
// arithmetic takes longer, rows of 1543 columns from memory took 0.93 of the time; not measured where the second-level
// cache is asked, as on Zen 4.
bool is_kept_staged(const RowShape& shape) {
  return shape.keeps && shape.size == 2 && shape.columns <= kBlock && !kAsksSecondLevel;
}

// Rows of a tile that is kept in a first-level cache beside what it is read from and written to. Wider elements, for
// which memory is waited, are better off with fewer.
int64_t kept_tile(int64_t columns, int64_t size) {
  return std::clamp<int64_t>((size == 2 ? 4096 : 2048) / columns, 1, columns < 64 ? kMostTileRows : 16);
}

// What is up to the machine, but for the rows that a thread takes.
void suit_machine(const RowShape& shape, const RowCut& cut, RowSchedule& s) {
  // Not copied: a vector of what was just written number by number would wait for it.
  const auto& [rows, columns, size, inputs, outputs, column_numbers, together, is_forward, has_output, in_stretches,
               keeps, unit, alike, at_once] = shape;
  const int64_t wide = std::max<int64_t>(size, 4), read = inputs * columns * size;
  const int64_t written = rows * outputs * columns * size, bytes = rows * read + written;

  const bool near = stays_near(bytes);
  // Some that know nothing of each other are better folded together, since they wait less: those that the caches keep,
  // and those whose results would not be stored line by line.
  const int64_t beside = columns * column_numbers * wide;
  const bool of_one_run = columns * wide <= kRunBytes && (near || is_forward || columns * size <= kRunBytes / 2);
  // Rows of several inputs, with results that begin with lines, are better off one by one from fewer bytes on: all that
  // a tile reads is prefetched at once. With two inputs rows of 320 to 608 columns of 16 bits took 0.58 to 0.95 of the
  // time (deep_norm, add_layer_norm and add_rms_norm: Zen 5); not measured where the second-level cache is asked, as on
  // Zen 3 and 4.
  const int64_t least = unit == 64 && !kAsksSecondLevel ? kLeastOfWords / inputs : kLeastOfWords;
  const bool is_short = of_one_run || (is_forward && (near && !exceeds_kept(bytes)
                                                          ? columns <= kBlock && 8 * read + beside <= kFirstCacheRoom
                                                          : columns * size < least));
  s.is_short = is_short;
  const int64_t room = near ? kFirstCacheRoom / 4 * 5 : kFirstCacheRoom;
  if (is_short) {
    const bool sparing = cut.ask >= Ask::kSparing && !(is_forward && near);
    const int64_t most = sparing ? int64_t{4} << 10 : kTileBytes;
    s.tile = std::clamp<int64_t>(most / read / 8 * 8, 8, kMostTileRows);
    // Eight rows are folded together. But a first-level cache must hold the rows that are prefetched, too: of float32
    // from memory, forward norms of 160 to 310 columns took 0.68 to 0.98 of the time with four (Zen 5).
    if (is_forward && !near && size == 4 && s.tile == 8 && 8 * read > (int64_t{9} << 10)) s.tile = 4;
  } else {
    s.tile = read + beside <= room ? 1 : together;
  }
  // The processor puts together the pieces of a few lines, not of many. With AVX2 and bfloat16 on a Zen 4, rms_norm of
  // 300000 x 64 took 15.5 ms so, 6.2 ms with usual stores and 4.9 ms by way of a stage; of 100000 x 192, in tiles of 8
  // rows, 4.0 ms so and 4.3 ms by way of a stage.
  constexpr int64_t kLinesPutTogether = 8;
  const bool in_pieces =
      is_short && !in_stretches && at_once < columns && at_once * size < 64 && s.tile * outputs > kLinesPutTogether;
  const bool whole_lines = unit == 64 && !in_pieces;
  const Traffic traffic{bytes, written};
  s.streams = has_output &&
              (whole_lines || (!is_short && unit >= kQuarterLine && leaves_by_quarters(columns * size))) &&
              streams_results(traffic);
  // Two results have a stage where rows are short; not measured where the second-level cache is asked, as on Zen 4.
  const bool has_stage = has_output && !in_stretches && (outputs == 1 || (is_short && !kAsksSecondLevel));
  s.staged = has_stage && !s.streams && !whole_lines && is_staged(columns, size, bytes);
  const bool both_fit = 2 * s.tile * read + beside <= kFirstCacheRoom;
  s.in_step = has_output && !is_short && (!near || both_fit || s.tile * read + beside > kFirstCacheRoom / 2 * 3);
  // Where the first-level cache has room for two such tiles, two passes over each are better than going in step.
  const bool some_fit = !is_short && near && 2 * kLongTileRows * read + beside <= kFirstCacheRoom;
  if (some_fit) {
    s.tile = kLongTileRows;
    s.in_step = false;
  }
  // It also saves some 6% of the time where rows of less than a line come from memory (Zen 5).
  s.early = some_fit || (is_short && !near && columns * size < 64);
  if (s.by_columns) {
    s.piece = kPiece * chunks_to_take(ceil_div(columns, kPiece));
    // Of so few rows that all are read side by side, the processor foresees what comes.
    if (exceeds_kept(bytes) && rows > s.stripe) s.ahead = kAheadBytes / inputs / together;
  } else if (cut.ask != Ask::kNothing) {
    s.ahead = kAheadBytes / inputs / (is_short ? 1 : s.tile);
    const int64_t least_in_order = num_threads() == 1 ? int64_t{6} << 10 : 768;
    s.in_order = size >= 4 && cut.ask == Ask::kInOrder && columns * size >= least_in_order;
  }
}

}  // namespace

int64_t rows_together(int64_t rows, int64_t row_bytes) {
  if (rows <= kMaxGroupRows || (rows <= kMostTogether && rows * row_bytes <= kBytesTogether)) return rows;
  return group_rows(rows * row_bytes > kBytesInCache ? 2 * row_bytes : row_bytes);
}

RowSchedule gradient_schedule(const RowShape& shape) {
  const int64_t rows = shape.rows, read = shape.inputs * shape.columns * shape.size;
  const RowCut cut = cut_rows(rows, read);
  RowSchedule s{};
  s.chunk = cut.chunk;
  s.chunks = cut.chunks;
  s.taken = cut.chunks_taken();
  s.stripe = stripe_of(rows, shape.size);
  s.by_columns = split_columns(rows, shape.columns);
  if (s.by_columns) s.together = rows_together(rows, read);
  suit_machine(shape, cut, s);
  return s;
}

bool shares_parameters(int64_t columns, int64_t size) { return size == 2 && columns > kStripeColumns; }

RowSchedule forward_schedule(const RowShape& shape) {
  const auto& [rows, columns, size, inputs, outputs, column_numbers, together, is_forward, has_output, in_stretches,
               keeps, unit, alike, at_once] = shape;
  const int64_t read = inputs * columns * size;
  const RowCut cut = cut_loose_rows(rows, read, (read + outputs * columns * size) + 64);
  RowSchedule s{};
  s.chunk = s.stripe = rows;
  s.chunks = 1;
  s.taken = cut.chunk;
  s.by_columns = !keeps && (in_stretches ? shares_stretches(rows, columns)
                                         : split_loose_columns(rows, columns, shares_parameters(columns, size)));
  if (s.by_columns) s.together = rows_together(rows, read);
  suit_machine(shape, cut, s);
  const bool fits_lines =
      alike && unit >= size && columns * size >= (unit >= kWord ? kLeastOfWords : least_of_others());
  const auto store_line_by_line = [&] {
    s.staged = s.is_short = false;
    s.streams = s.in_lines = true;
    s.tile = 1;
  };
  if (s.staged && fits_lines && !is_kept_staged(shape)) store_line_by_line();
  // Two results that do not begin with lines: long rows of them have no stage, nor have short ones on Zen 3 and 4.
  if (outputs > 1 && !s.streams && !s.by_columns && columns * size >= 64 &&
      exceeds_last_cache(rows * (read + outputs * columns * size))) {
    if (!s.is_short) {
      // Stored as usual, a tile with two results has twice as many lines under way. Line by line the rows take 0.55 to
      // 0.75 of the time (add_rms_norm and add_layer_norm, 513 to 32769 columns: Zen 5; of float32 0.6 on a Zen 4).
      if (fits_lines && (size > 2 || !kAsksSecondLevel)) store_line_by_line();
    } else if (kAsksSecondLevel) {
      // Tiles of 1 KiB and nearly no prefetches took 0.65 of the time (add_rms_norm, 16000 x 129 float32).
      s.tile = std::clamp<int64_t>(1024 / (columns * size), 1, s.tile);
      s.ahead = std::min<int64_t>(s.ahead, 512);
    }
  }
  if (keeps) {
    s.tile = kept_tile(columns, size);
    s.early = false;
  }
  // There is no stage for more.
  if (s.is_short || keeps ? s.tile * columns * size > kTileBytes : !s.by_columns && columns > kStripeColumns)
    s.staged = false;
  return s;
}

}  // namespace descend::kernels
