// What an operator on rows says: a program, which is done to vectors by loops that are written once for all operators.
//
// A program is a struct of numbers and of functions on vectors:
//   kInputs, kParameters, kNumbers, kScalars, kTerms (numbers included), kSums, kColumnSums
//   kFoldsInDouble                            whether the lanes of a row of one run are added in double
//   kStatistics                               the last so many terms are results, too
//   kPivot, kNearer                           if sums are of distances: the term from which they are taken, which is
//                                             the first one found; and the term that is taken for it if it was far off
//   kRowsAtOnce                               rows that the registers hold in the first pass
//   kRowsMapped                               and in the second
//   kNan                                      where NaNs in results of 16 bits come from
//   sum(in, parameters, numbers, sums)        adds to a row's sums; beyond the row inputs are 0, or the pivot
//   finish(means, scalars, terms)             a row's terms, in double, from the means of its sums; whether they hold
//   map(in, parameters, terms, column_sums)   the result; adds to the column sums
//   combine(in, numbers)                      changes inputs before any of the others sees them; optional
//   map_single(in, terms)                     the result in rows of one element, where it is not map's; optional
//   kMapsScalars                              map's terms end with the numbers of the call; optional
//   kTotals                                   finish takes the sums themselves, not their means; optional
//   kMasksResults                             results are 0 where the call's mask is not; optional
//   kKeeps                                    map reads what the first pass has kept, not the input; with it sum() is
//                                             something else: see kept-inl.h; optional
//   kOutputs                                  how many results there are, if not one; map and map_single then return
//                                             none, and write them to a last argument
#pragma once

#include "kernels/rows/engine.h"
#include "kernels/simd/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Results of an element.
template <class P>
inline constexpr int kOutputs = [] {
  if constexpr (requires { P::kOutputs; }) return int{P::kOutputs};
  return 1;
}();

// Whether the result in rows of one element has a formula of its own.
template <class P>
inline constexpr bool kHasSingle = requires(const Vector<float>* v) { P::map_single(v, v); } ||
                                   requires(const Vector<float>* v, Vector<float>* to) { P::map_single(v, v, to); };

// Whether the sums are of distances from a pivot: the mean of a row's first columns, so that nothing cancels however
// far from 0 the row lies.
template <class P>
inline constexpr bool kHasPivot = requires { P::kPivot; };

// What the program's functions get for the inputs of an element.
template <class P, class V>
HWY_INLINE void combine([[maybe_unused]] V* in, [[maybe_unused]] const V* numbers) {
  if constexpr (requires { P::combine(in, numbers); }) P::combine(in, numbers);
}

// Whether it is another one where it was far off.
template <class P>
inline constexpr bool kMovesPivot = requires { P::kNearer; };

// Whether terms follow from the sums themselves; and whether results are masked.
template <class P>
inline constexpr bool kTakesTotals = requires { P::kTotals; };
template <class P>
inline constexpr bool kHasMask = requires { P::kMasksResults; };

// Whether the first pass leaves what it makes of the elements to the second: see kept-inl.h.
template <class P>
inline constexpr bool kKeeps = requires { P::kKeeps; };
template <class P>
inline constexpr bool kReadsMask = kHasMask<P> || kKeeps<P>;

// Numbers that are known before the sums: those that are read, and the pivot. Those that are not read: the pivot and
// what follows from the sums.
template <class P>
inline constexpr int kKnownTerms = int{P::kNumbers} + (kHasPivot<P> ? 1 : 0);
template <class P>
inline constexpr int kFoundTerms = int{P::kTerms} - int{P::kNumbers};

// Whether rows know nothing of each other: there are no sums of columns, and those of rows need no parameters.
template <class P>
inline constexpr bool kIsForward = P::kColumnSums == 0;

// Whether a result depends on nothing but its row: there is neither a parameter nor a sum of its column.
template <class P>
inline constexpr bool kStandsAlone = int{P::kParameters} + int{P::kColumnSums} == 0;

// What map gets of a row: its terms and, behind them, the numbers of the call if the program asks for these.
template <class P>
inline constexpr int kMapTerms = int{P::kTerms} + (requires { P::kMapsScalars; } ? int{P::kScalars} : 0);

// The bound of an array that may be empty.
template <int kN>
inline constexpr int kSome = kN > 0 ? kN : 1;

// The numbers of the call, where map gets them.
template <class P, class W>
HWY_INLINE void load_scalars(const Tile<W>& tile, Vector<W> (&terms)[kMapTerms<P>]) {
  DESCEND_UNROLL
  for (int i = P::kTerms; i < kMapTerms<P>; ++i) terms[i] = splat(tile.scalars[i - P::kTerms]);
}

// A row's numbers and the terms that follow from its sums, as vectors; known: so many of them.
template <class P, class W>
HWY_INLINE void load_terms(const Tile<W>& tile, int64_t row, int known, Vector<W> (&terms)[kMapTerms<P>]) {
  DESCEND_UNROLL
  for (int i = 0; i < P::kTerms; ++i) {
    if (i < known) terms[i] = splat(i < P::kNumbers ? tile.numbers[i][row] : tile.terms[i - P::kNumbers][row]);
  }
  if (known == P::kTerms) load_scalars<P>(tile, terms);
}

// Rows that are worked on side by side.
template <class P, class T, int kRows>
struct RowSet {
  using W = Wide<T>;
  const T* in[kRows][P::kInputs];
  Vector<W> terms[kRows][kMapTerms<P>];
  MaskRow mask[kHasMask<P> ? kRows : 1];
  bool may_mask = false;
  // Copies: the compiler must think that a vector that is stored may change those of the tile.
  const W* parameters[kSome<P::kParameters>];
  W* column_sums[kSome<P::kColumnSums>];
  bool streams;

  HWY_INLINE RowSet(const Tile<W>& tile, int64_t row, int known) : streams(tile.streams) {
    DESCEND_UNROLL
    for (int i = 0; i < P::kParameters; ++i) parameters[i] = tile.parameters[i];
    DESCEND_UNROLL
    for (int i = 0; i < P::kColumnSums; ++i) column_sums[i] = tile.column_sums[i];
    DESCEND_UNROLL
    for (int r = 0; r < kRows; ++r) {
      DESCEND_UNROLL
      for (int i = 0; i < P::kInputs; ++i) in[r][i] = reinterpret_cast<const T*>(tile.in[i].row(row + r));
      load_terms<P>(tile, row + r, known, terms[r]);
      if constexpr (kHasMask<P>) {
        mask[r] = tile.mask[row + r];
        may_mask = may_mask || mask[r].may_mask(tile.columns);
      }
    }
  }
};

// Rows [row, row + rows) from column `begin` on.
template <class P, class T, class W = Wide<T>>
HWY_INLINE void place_tile(const RowProblem<W>& p, int64_t row, int64_t rows, int64_t begin, int64_t columns,
                           Tile<W>& tile) {
  const int64_t offset = begin * static_cast<int64_t>(sizeof(T));
  tile.rows = rows;
  tile.columns = columns;
  tile.exact = 0;
  DESCEND_UNROLL
  for (int i = 0; i < P::kInputs; ++i) {
    tile.in[i].data = p.in[i].row(row) + offset;
    tile.in[i].stride = p.in[i].stride;
  }
  tile.out.data = p.out.data == nullptr ? nullptr : p.out.row(row) + offset;
  tile.out.stride = p.out.stride;
  DESCEND_UNROLL
  for (int i = 0; i < P::kNumbers; ++i) tile.numbers[i] = p.numbers[i] + row;
  DESCEND_UNROLL
  for (int i = P::kTerms; i < kMapTerms<P>; ++i) {
    tile.scalars[i - P::kTerms] = static_cast<W>(p.scalars[i - P::kTerms]);
  }
}

// The mask of a tile's rows from column `begin` on; the cursor moves on behind them.
template <class P, class W>
HWY_INLINE void place_mask(MaskCursor& cursor, int64_t begin, Tile<W>& tile) {
  if constexpr (kReadsMask<P>) {
    for (int64_t r = 0; r < tile.rows; ++r, cursor.next()) tile.mask[r] = cursor.row().from(begin);
  }
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
