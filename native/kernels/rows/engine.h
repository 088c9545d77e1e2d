// The engine for operators on rows: what a call is, what is compiled of an operator, and how a call is run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/rows/mask_rows.h"
#include "kernels/rows/tile.h"
#include "kernels/schedule/rows.h"
#include "kernels/simd/element.h"

namespace descend::kernels {

// A call: what is read and written.
template <class W>
struct RowProblem {
  int64_t rows = 0;
  int64_t columns = 0;
  // Parameters that change every so many columns, and come again after so many rows; 0: they are numbers a column.
  int64_t stretch = 0;
  int64_t period = 1;
  Element element = Element::kFloat32;
  Stream in[kMostInputs];
  Stream out;       // data null: not wanted
  Stream second{};  // of programs with two results; wanted if the first is
  const W* numbers[kMostNumbers] = {};
  W* statistics[kMostNumbers] = {};  // terms of rows that are results; null: not wanted
  double scalars[kMostScalars] = {};
  MaskRows mask = {};
  struct {
    const W* wide = nullptr;
    const void* own = nullptr;
  } parameters[kMostParameters];
  struct Sums {
    double* slots = nullptr;
    W* wide = nullptr;
    void* own = nullptr;
    bool wanted() const { return slots != nullptr || wide != nullptr || own != nullptr; }
  } sums[kMostSums];

  // The stretch that a column of a row belongs to, among those of all rows until the parameters come again.
  int64_t stretch_of(int64_t row, int64_t column) const {
    return row % period * (columns / stretch) + column / stretch;
  }
};

// Rows that threads work on together, each on some of the columns.
struct RowGroup {
  int64_t row = 0;
  int64_t rows = 0;
};

// What is known of two groups of such rows.
template <class W>
struct SharedRows {
  RowGroup group, below;    // results are made of the first, sums of the second
  double* sums;             // of each block and row of a group
  W pivots[kMostTogether];  // of the rows that are summed
  W terms[kMostTerms][kMostTogether];
  bool exact[kMostTogether];
  double means[kMostMeans][kMostTogether];  // of those
};

template <class W>
struct RowOperator;

// A call: what is computed, by which operator, and how.
template <class W>
struct RowCall {
  const RowProblem<W>& problem;
  const RowOperator<W>& op;
  const RowSchedule& schedule;
  W* parameters = nullptr;  // which all threads share, in whole packs, where no thread has room for its own
};

// How many of each an operator's program has.
struct RowCounts {
  int inputs, outputs, parameters, numbers, scalars, row_sums, column_sums, statistics;
  int together;     // rows that share loads
  int64_t at_once;  // columns of a short row that are mapped before those of the next row
  bool has_pivot;
  bool takes_totals;   // terms follow from the sums of a row, not from their means
  bool masks_results;  // what the mask hides is 0
  bool keeps;          // what the sums are made of is kept for the results, and never shared
};

// What is compiled of an operator, for one element type and instruction set.
template <class W>
struct RowKernels {
  RowCounts counts;
  void (*rows)(const RowCall<W>& call, int64_t first, int64_t last);  // of gradients, whole chunks
  void (*share_parameters)(const RowCall<W>& call, int64_t block);
  // Rows that threads share: the pivots of the group below; a block's part of its sums; its terms, unless some pivots
  // had to be moved; the results of columns [begin, begin + n) of the group, and that part of the sums of the group
  // below.
  void (*find_pivots)(const RowCall<W>& call, SharedRows<W>& shared);
  void (*block_sums)(const RowCall<W>& call, const SharedRows<W>& shared, int64_t block);
  bool (*find_terms)(const RowCall<W>& call, SharedRows<W>& shared, bool again);
  void (*results)(const RowCall<W>& call, const SharedRows<W>& shared, int64_t begin, int64_t n);
};

// An operator: its compiled loops, and the plain ones in double for rows that leave the range of the fast ones.
template <class W>
struct RowOperator {
  RowKernels<W> kernels;

  // in[i], parameters[i]: n columns in double; numbers: those of the row, then those of the call. Adds to the row's
  // sums, behind which is the pivot. (Of programs that keep what they sum, the last input is 1 where the mask is not 0,
  // and the pivot, which is at first the least number, is the largest score so far.)
  void (*exact_sums)(int64_t n, const double* const* in, const double* const* parameters, const double* numbers,
                     double* sums);
  // The statistics, from the means of the row's sums and the pivot. (Programs that take totals get these for means.)
  void (*exact_statistics)(const double* numbers, const double* means, double* statistics) = nullptr;
  // The result, and what is added to the column sums, from the same. A second result lies kExactColumns further on.
  void (*exact_map)(int64_t n, const double* const* in, const double* const* parameters, const double* numbers,
                    const double* means, double* out, double* const* column_terms);
  // What the program's combine() is to the elements.
  void (*exact_combine)(int64_t n, double* const* in, const double* numbers) = nullptr;
};

inline constexpr int64_t kExactColumns = 256;  // that are computed in double at a time

// Columns [begin, end) of a row.
struct RowPart {
  int64_t row, begin, end;
};

// A row in double. exact_means computes the means of its sums and writes its statistics. exact_results writes its
// results, one after the other, to where `out` says, if that is not null, and adds its part to the sums over columns.
// It computes the means if they are null.
template <class W>
void exact_means(const RowCall<W>& call, int64_t row, double* means);
template <class W>
void exact_results(const RowCall<W>& call, const RowPart& part, const double* means, char* const* out,
                   W* const* column_sums);
// The same of a narrow row: its part goes to the first of each column's chains, its results, already rounded to the
// elements' type, to `results`, if that is not null. Nothing is written to where they belong: an input may lie there.
template <class W>
void exact_narrow(const RowCall<W>& call, int64_t row, double* const* chains, W* const* results);

// Where a thread keeps kKeptInRoom columns of a long row and a block of what is beyond, until the thread ends; null if
// there is no memory.
template <class W>
W* kept_room();

// Gradients: rows with column sums.
int64_t gradient_slots(int64_t rows, int64_t columns, Element element, int inputs = 2);
size_t gradient_scratch(int64_t rows, int64_t columns, Element element, int inputs = 2);
template <class W>
void run_gradient(const RowProblem<W>& p, const RowOperator<W>& op, void* scratch);

// Forwards: rows without column sums.
size_t forward_scratch(int64_t rows, int64_t columns, Element element, int parameters, int inputs = 1);
template <class W>
void run_forward(const RowProblem<W>& p, const RowOperator<W>& op, void* scratch);

}  // namespace descend::kernels
