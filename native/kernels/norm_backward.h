// What the backward passes of layer norm and RMS norm share: RMS norm's is layer norm's without the mean.
#pragma once

#include <cmath>
#include <cstddef>

#include "hwy/base.h"
#include "kernels/cut.h"
#include "kernels/element.h"
#include "kernels/stores.h"
#include "kernels/tame.h"

namespace descend::kernels {

template <class T>
struct NormBackward {
  int64_t rows;
  int64_t columns;
  Rows<const T> dy;
  Rows<const T> x;
  const Wide<T>* mean;  // [rows]; null for RMS norm
  const Wide<T>* rstd;
  ColumnParameter<T> gamma;
  Rows<T> dx;  // data null: not wanted
  ColumnSums<T> dgamma;
  ColumnSums<T> dbeta;
};

// Sums over a row or a part of it. g = dy * gamma; xc is x - mean, times rstd as well where the row is not tame.
struct RowSums {
  double gx = 0;
  double g = 0;
};

// A row whose rstd is far from the ends of its type's range needs no xhat, and so fewer operations and roundings:
//   tame:     dx = rstd * dy * gamma - (slope * (x - mean) + offset)
//   not tame: dx = rstd * (dy * gamma - (slope * xhat + offset))
// Where the row has an infinity or a NaN, or its products or terms leave the range, slope or offset shows it: such a
// row is not tame. Nor is one whose mean of products or slope is subnormal: rstd or x - mean may bring the bits that it
// has lost back into the range.
template <class W>
struct RowTerms {
  W mean;
  W rstd;
  W slope;
  W offset;
  bool tame;
};

// The terms of a row from its sums: where it turns out not to be tame although its rstd is, those of wild_sums(), with
// rstd in them. Inlined by force: a function of the baseline, called where the upper halves of the vector registers are
// in use, takes some 70 ns.
template <class T, class WildSums>
HWY_INLINE RowTerms<Wide<T>> row_terms(const NormBackward<T>& p, int64_t row, RowSums sums, WildSums wild_sums) {
  using W = Wide<T>;
  const double rstd = static_cast<double>(p.rstd[row]), n = static_cast<double>(p.columns);
  RowTerms<W> terms;
  terms.mean = p.mean == nullptr ? W{0} : p.mean[row];
  terms.rstd = p.rstd[row];
  if (is_tame(terms.rstd)) {
    const double gx = sums.gx / n;
    terms.slope = static_cast<W>(gx * rstd * rstd * rstd);
    terms.offset = static_cast<W>(sums.g / n * rstd);
    const bool exact = gx == 0 || (std::isnormal(static_cast<W>(gx)) && std::isnormal(terms.slope));
    terms.tame = exact && std::isfinite(terms.offset);
    if (terms.tame) return terms;
    sums = wild_sums();
  }
  terms.slope = static_cast<W>(sums.gx / n);
  terms.offset = static_cast<W>(sums.g / n);
  terms.tame = false;
  return terms;
}

// Whether results may go by way of a stage. In double it would take more of the stack than some threads have.
template <class T>
inline constexpr bool kStages = sizeof(T) < sizeof(double);

// Rows [row, row + rows), whose columns are cut.
struct BlockGroup {
  int64_t row;
  int64_t rows;
  Ask ask;  // for what is read next
};

// One operator's kernels, for the chosen instruction set.
template <class T>
struct NormBackwardKernels {
  // Rows [first, last), which are whole chunks, and each chunk's column sums.
  void (*rows)(const NormBackward<T>& p, int64_t first, int64_t last, const RowCut& cut, Stores stores);
  // A group of rows: a block's part of each row's sums; then the results of some columns, at most a block's, and where
  // the group below has rows, the same block's part of its sums.
  void (*block_sums)(const NormBackward<T>& p, const BlockGroup& group, int64_t block, RowSums* sums);
  void (*results)(const NormBackward<T>& p, const BlockGroup& group, int64_t column, int64_t columns,
                  const RowTerms<Wide<T>>* terms, const BlockGroup& below, RowSums* sums, Stores stores);
  // A whole row's sums as those of one that is not tame.
  RowSums (*wild_sums)(const NormBackward<T>& p, int64_t row);
};

// Slots of partial sums; 0 where the kernels write the sums themselves, or one slot of them.
template <class T>
int64_t norm_backward_slots(int64_t rows, int64_t columns);
template <class T>
size_t norm_backward_scratch(int64_t rows, int64_t columns);
template <class T>
void norm_backward(const NormBackward<T>& p, const NormBackwardKernels<T>& kernels, void* scratch);

}  // namespace descend::kernels
