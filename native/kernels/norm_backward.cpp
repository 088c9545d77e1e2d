#include "kernels/norm_backward.h"

#include <algorithm>

#include "runtime/fp_environment.h"
#include "runtime/parallel.h"

namespace descend::kernels {
namespace {

template <class T>
int64_t row_bytes(int64_t columns) {
  return 2 * columns * static_cast<int64_t>(sizeof(T));
}

// Rows that begin and end where quarters of lines do are stored by these past the caches, but for short ones, whose
// lines are not completed soon. Others go by way of a stage. But where the second-level cache is asked, as on Zen 4,
// those that are worked on one by one and are not long are written so evenly that a stage would hold them up; on Zen 5
// they took up to 1.36 times as long without it.
template <class T>
Stores stores_of(const NormBackward<T>& p, int64_t bytes) {
  constexpr int64_t kLeast = 512, kMost = 2560;  // bytes of such a row: more, and less
  constexpr int64_t kLeastOfQuarters = 1536;     // of one whose last line is not whole
  if (p.dx.data == nullptr) return Stores::kPlain;
  const Traffic traffic{bytes, bytes / 3};
  const int64_t row = p.columns * static_cast<int64_t>(sizeof(T));
  const bool whole = row % 64 == 0 || (row % kQuarterLine == 0 && row >= kLeastOfQuarters);
  if (row > kLeast && whole && stream_output(p.dx, traffic, kQuarterLine)) return Stores::kStream;
  const Stores stores = stores_of(p.dx, p.columns, traffic);
  const bool even = kAsksSecondLevel && kLeast < row && row < kMost;
  return stores == Stores::kStaged && (even || !kStages<T>) ? Stores::kPlain : stores;
}

// Rows whose columns are cut that are worked on at a time. All of them where they are few or the second pass finds them
// in the second-level cache: the partial sums of more groups, and threads that wait for each other, would cost more.
constexpr int64_t kMostTogether = 256, kBytesTogether = int64_t{4} << 20;

// Of inputs with more bytes, which few last-level caches hold, the groups are better small: two are in use at a time.
constexpr int64_t kBytesInCache = int64_t{32} << 20;

template <class T>
int64_t rows_together(int64_t rows, int64_t columns) {
  const int64_t bytes = row_bytes<T>(columns);
  if (rows <= kMaxGroupRows || (rows <= kMostTogether && rows * bytes <= kBytesTogether)) return rows;
  return group_rows(rows * bytes > kBytesInCache ? 2 * bytes : bytes);
}

// Rows of fewer bytes are not worth reading in order: at each turn what was asked for is waited for. Several threads,
// whose requests meet, gain by it sooner than one.
int64_t least_in_order() { return num_threads() == 1 ? int64_t{6} << 10 : 768; }

template <class T>
void by_rows(const NormBackward<T>& p, const NormBackwardKernels<T>& kernels, int64_t bytes, Stores stores) {
  RowCut cut = cut_rows(p.rows, row_bytes<T>(p.columns));
  cut.near = stays_near(bytes);
  const bool is_short = p.columns * static_cast<int64_t>(sizeof(T)) < least_in_order();
  if (cut.ask == Ask::kInOrder && is_short) cut.ask = Ask::kSparing;
  const int64_t taken = cut.chunks_taken(), rows = taken * cut.chunk;
  parallel_for(ceil_div(cut.chunks, taken), p.rows * row_work<T>(3 * p.columns),
               [&](int64_t i) { kernels.rows(p, i * rows, std::min((i + 1) * rows, p.rows), cut, stores); });
}

// Few rows with many columns: the threads share a group of rows, each taking blocks of columns; one slot is enough for
// all groups, and none is needed for one. What is worth waking a thread is the whole call: it stays awake from one
// region to the next.
template <class T>
void by_columns(const NormBackward<T>& p, const NormBackwardKernels<T>& kernels, int64_t bytes, Stores stores,
                RowSums* sums) {
  const int64_t blocks = blocks_in(p.columns), most = rows_together<T>(p.rows, p.columns);
  const int64_t work = p.rows * row_work<T>(3 * p.columns);
  // Beyond the caches the sums of a group come with the results of the one above it.
  const bool beyond = exceeds_kept(bytes), in_step = beyond && p.dx.data != nullptr;
  // Of so few rows that all are read side by side, the processor foresees what comes.
  const Ask ask = beyond && p.rows > stripe_rows<T>(p.rows) ? Ask::kAhead : Ask::kNothing;
  const auto group_at = [&](int64_t row) { return BlockGroup{row, std::min(most, p.rows - row), ask}; };
  for (BlockGroup group = group_at(0), below; group.rows > 0; group = below) {
    if (p.dx.data != nullptr && (group.row == 0 || !in_step)) {
      parallel_for(blocks, work, [&](int64_t b) { kernels.block_sums(p, group, b, sums + b * group.rows); });
    }
    RowTerms<Wide<T>> terms[kMostTogether];
    {
      const FixedFpEnvironment environment;
      for (int64_t r = 0; r < group.rows; ++r) {
        RowSums sum;
        for (int64_t b = 0; p.dx.data != nullptr && b < blocks; ++b) {
          sum.gx += sums[b * group.rows + r].gx;
          sum.g += sums[b * group.rows + r].g;
        }
        const int64_t row = group.row + r;
        terms[r] = row_terms(p, row, sum, [&] { return kernels.wild_sums(p, row); });
      }
    }
    below = group_at(group.row + group.rows);
    const BlockGroup summed = in_step ? below : BlockGroup{};
    const int64_t piece = summed.rows > 0 ? kBlock : kBlock / 4;  // columns
    parallel_for(ceil_div(p.columns, piece), work, [&](int64_t i) {
      const int64_t column = i * piece, columns = std::min(piece, p.columns - column);
      kernels.results(p, group, column, columns, terms, summed, sums + column / kBlock * summed.rows, stores);
    });
  }
}

}  // namespace

template <class T>
int64_t norm_backward_slots(int64_t rows, int64_t columns) {
  if (!split_columns(rows, columns)) return cut_rows(rows, row_bytes<T>(columns)).chunks;
  return rows > rows_together<T>(rows, columns) ? 1 : 0;
}

template <class T>
size_t norm_backward_scratch(int64_t rows, int64_t columns) {
  if (!split_columns(rows, columns)) return 0;
  return static_cast<size_t>(blocks_in(columns) * rows_together<T>(rows, columns)) * sizeof(RowSums);
}

template <class T>
void norm_backward(const NormBackward<T>& p, const NormBackwardKernels<T>& kernels, void* scratch) {
  if (p.columns <= 0) return;
  if (p.rows <= 0) {
    p.dgamma.clear(p.columns);
    p.dbeta.clear(p.columns);
    return;
  }
  const int64_t size = static_cast<int64_t>(sizeof(T));
  const int64_t bytes = 3 * p.rows * p.columns * size;
  const Stores stores = stores_of(p, bytes);
  if (split_columns(p.rows, p.columns)) {
    by_columns(p, kernels, bytes, stores, static_cast<RowSums*>(scratch));
  } else {
    by_rows(p, kernels, bytes, stores);
  }
}

#define DESCEND_INSTANTIATE(T)                                             \
  template int64_t norm_backward_slots<T>(int64_t rows, int64_t columns);  \
  template size_t norm_backward_scratch<T>(int64_t rows, int64_t columns); \
  template void norm_backward<T>(const NormBackward<T>& p, const NormBackwardKernels<T>& kernels, void* scratch);
DESCEND_INSTANTIATE(float16)
DESCEND_INSTANTIATE(bfloat16)
DESCEND_INSTANTIATE(float)
DESCEND_INSTANTIATE(double)

}  // namespace descend::kernels
