// Rows of at most four columns. A vector holds one column of as many rows as it has lanes. So the sums, terms and
// results of a row stay in one lane.
#pragma once

#include "kernels/rows/columns-inl.h"
#include "kernels/rows/prefetch-inl.h"
#include "kernels/rows/results-inl.h"
#include "kernels/rows/spread-inl.h"
#include "kernels/simd/doubles-inl.h"
#include "kernels/simd/mask-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Whether rows of very few columns go this way.
template <class T>
inline constexpr bool kHasNarrow = kHasVectors && sizeof(Wide<T>) == sizeof(float);

#if HWY_TARGET != HWY_SCALAR

inline constexpr int64_t kNarrowRoom = kNarrowRows * kNarrowColumns + 32;

template <size_t kColumns, class W>
HWY_INLINE void store_columns(const Vector<W> (&v)[kColumns], W* p) {
  const Tag<W> d;
  if constexpr (kColumns == 1) hn::StoreU(v[0], d, p);
  if constexpr (kColumns == 2) hn::StoreInterleaved2(v[0], v[1], d, p);
  if constexpr (kColumns == 3) hn::StoreInterleaved3(v[0], v[1], v[2], d, p);
  if constexpr (kColumns == 4) hn::StoreInterleaved4(v[0], v[1], v[2], v[3], d, p);
}

// The elements of a tile's rows one behind the other, in the type of the arithmetic.
template <class P, class W>
struct NarrowTile {
  HWY_ALIGN W in[P::kInputs][kNarrowRoom];
  HWY_ALIGN W out[kOutputs<P>][kNarrowRoom];
};

// Whole vectors of rows, filled up with zeros.
template <class T, class W = Wide<T>>
HWY_INLINE void read_narrow(const Stream& from, int64_t rows, int64_t columns, W* to) {
  const T* data = reinterpret_cast<const T*>(from.data);
  read_tile<T>({data, from.stride / static_cast<int64_t>(sizeof(T))}, rows, columns, to);
  const int64_t whole = ceil_div(rows, kNarrowLanes) * kNarrowLanes * columns;
  for (int64_t i = rows * columns; i < whole; ++i) to[i] = W{0};
}

// The terms of a vector of rows from the sums over each one's columns; whether they hold, 1 or 0 a row.
template <class P, size_t kColumns, class W>
HWY_INLINE bool narrow_terms(const Divisor& divisor, const double* scalars, const Vector<W> (&sums)[kColumns][P::kSums],
                             Vector<W> (&terms)[kMapTerms<P>], Vector<W>& holds) {
  const Tag<double> d;
  const hn::Half<Tag<W>> half;
  constexpr size_t kWide = kVectorLanes<W> / kVectorLanes<double>;
  static_assert(kWide == 2);
  Vector<double> means[2][P::kSums], wide[2][P::kTerms];
  DESCEND_UNROLL
  for (int k = 0; k < P::kSums; ++k) {
    Vector<double> columns[2][kColumns];
    DESCEND_UNROLL
    for (size_t c = 0; c < kColumns; ++c) {
      Vector<double> both[2];
      to_double<W, 1>(&sums[c][k], both);
      columns[0][c] = both[0];
      columns[1][c] = both[1];
    }
    DESCEND_UNROLL
    for (size_t h = 0; h < 2; ++h) {
      const auto sum = fold_columns<kColumns>(columns[h], Sum());
      means[h][k] = kTakesTotals<P> ? sum
                    : kColumns == 3 ? divisor(sum)
                                    : hn::Mul(sum, splat(1.0 / kColumns));  // a power of 2: exact
    }
  }
  DESCEND_UNROLL
  for (int i = 0; i < kKnownTerms<P>; ++i) {
    Vector<double> both[2];
    to_double<W, 1>(&terms[i], both);
    wide[0][i] = both[0];
    wide[1][i] = both[1];
  }
  const auto low = P::template finish<W>(means[0], scalars, wide[0]);
  const auto high = P::template finish<W>(means[1], scalars, wide[1]);
  const auto narrowed = [&](Vector<double> lower, Vector<double> upper) DESCEND_INLINED {
    return hn::Combine(Tag<W>(), hn::BitCast(half, narrow_double<W>(d, upper)),
                       hn::BitCast(half, narrow_double<W>(d, lower)));
  };
  DESCEND_UNROLL
  for (int i = P::kNumbers; i < P::kTerms; ++i) terms[i] = narrowed(wide[0][i], wide[1][i]);
  if (HWY_LIKELY(hn::AllTrue(d, low) && hn::AllTrue(d, high))) return true;
  holds = narrowed(hn::IfThenElseZero(low, splat(1.0)), hn::IfThenElseZero(high, splat(1.0)));
  return false;
}

// Elements become what is kept of them; the pivot is their largest score. Their sum.
template <class P, size_t kColumns, class W>
HWY_INLINE Vector<W> keep_columns(const W* open, const double* scalars, Vector<W> (&v)[kColumns][1], Vector<W>& pivot) {
  Vector<W> are_open[kColumns], scores[kColumns];
  const typename P::Scale scale(scalars);
  load_columns<kColumns>(Tag<W>(), open, are_open);
  each<kColumns>([&](size_t c) DESCEND_INLINED { scores[c] = P::score(v[c][0], hn::MaskFromVec(are_open[c]), scale); });
  pivot = fold_columns<kColumns>(scores, Largest());
  Vector<W> kept[kColumns];
  const auto keep = [&](auto may_be_far) DESCEND_INLINED {
    each<kColumns>([&](size_t c) DESCEND_INLINED {
      v[c][0] = kept[c] = P::template kept<may_be_far()>(v[c][0], hn::MaskFromVec(are_open[c]), pivot, scale);
    });
  };
  const bool near = hn::AllTrue(Tag<W>(), hn::Lt(hn::Abs(pivot), splat(static_cast<W>(P::kFar))));
  near ? keep(std::false_type()) : keep(std::true_type());
  return fold_columns<kColumns>(kept, Sum());
}

// The results of a tile of so many columns that begins with row `first`: `values.out` of `values.in`, compiled once for
// all element types. mask: the bytes of the rows' elements, if there is one.
template <class P, size_t kColumns, class W>
HWY_NOINLINE void narrow_rows_of(const RowCall<W>& call, const Tile<W>& tile, int64_t first,
                                 [[maybe_unused]] const uint8_t* mask, NarrowTile<P, W>& values) {
  const Tag<W> d;
  constexpr int64_t kLanes = kVectorLanes<W>, kParts = kNarrowLanes / kLanes, kStep = kColumns;
  const RowProblem<W>& p = call.problem;
  uint64_t exact[kNarrowRows / 64] = {};
  auto& in = values.in;
  auto& out = values.out;
  // Copies: the compiler must think that a vector that is stored may change the tile.
  const int64_t rows = tile.rows;
  const W* numbers[kSome<P::kNumbers>];
  DESCEND_UNROLL
  for (int i = 0; i < P::kNumbers; ++i) numbers[i] = tile.numbers[i];
  HWY_ALIGN W open[kKeeps<P> ? kNarrowRoom : 1];  // lanes of 1s and 0s, as of a comparison
  if constexpr (kKeeps<P>) {
    for_each_pack<W>(0, rows * kStep, [&](auto extent, int64_t c) DESCEND_INLINED {
      each<kPackVectors<W>>([&](size_t k) DESCEND_INLINED {
        hn::Store(hn::VecFromMask(d, load_open<W>(extent, mask + c, k)), d, open + c + k * kVectorLanes<W>);
      });
    });
  }
  Vector<W> beside[kColumns][kSome<P::kParameters>], column_sums[kParts][kColumns][kSome<P::kColumnSums>];
  DESCEND_UNROLL
  for (size_t c = 0; c < kColumns; ++c) {
    DESCEND_UNROLL
    for (int i = 0; i < P::kParameters; ++i) beside[c][i] = splat(tile.parameters[i][c]);
    DESCEND_UNROLL
    for (int64_t part = 0; part < kParts; ++part) {
      DESCEND_UNROLL
      for (int i = 0; i < P::kColumnSums; ++i) column_sums[part][c][i] = hn::Zero(d);
    }
  }
  const Divisor count(static_cast<double>(kColumns));
  for (int64_t group = 0; group < rows; group += kNarrowLanes) {
    if constexpr (kKeeps<P>) {  // of the tile that follows; not measured with other programs
      const char* const next = tile.in[0].row(group + kNarrowRows);
      for (int64_t b = 0; b < kNarrowLanes * kStep * size_of(p.element); b += 64) prefetch_distant(next + b);
    }
    DESCEND_UNROLL
    for (int64_t part = 0; part < kParts; ++part) {
      const int64_t row = group + part * kLanes, left = rows - row;
      if (left <= 0) break;
      Vector<W> v[kColumns][P::kInputs], terms[kMapTerms<P>], sums[kColumns][P::kSums];
      load_scalars<P>(tile, terms);
      DESCEND_UNROLL
      for (int i = 0; i < P::kInputs; ++i) {
        Vector<W> columns[kColumns];
        load_columns<kColumns>(d, in[i] + row * kStep, columns);
        DESCEND_UNROLL
        for (size_t c = 0; c < kColumns; ++c) v[c][i] = columns[c];
      }
      DESCEND_UNROLL
      for (int i = 0; i < P::kNumbers; ++i) {
        terms[i] = left >= kLanes ? hn::LoadU(d, numbers[i] + row)
                                  : load_first(d, numbers[i] + row, static_cast<size_t>(left));
      }
      DESCEND_UNROLL
      for (size_t c = 0; c < kColumns; ++c) combine<P>(v[c], terms);
      if constexpr (kKeeps<P>) {
        sums[0][0] = keep_columns<P, kColumns>(open + row * kStep, p.scalars, v, terms[P::kPivot]);
      } else if constexpr (kHasPivot<P>) {
        Vector<W> columns[kColumns];
        DESCEND_UNROLL
        for (size_t c = 0; c < kColumns; ++c) columns[c] = v[c][0];
        const auto sum = fold_columns<kColumns>(columns, Sum());
        terms[P::kPivot] = kColumns == 1 ? sum : hn::Mul(sum, splat(W{1} / W{kColumns}));
      }
      if constexpr (!kKeeps<P>) {
        DESCEND_UNROLL
        for (size_t c = 0; c < kColumns; ++c) {
          DESCEND_UNROLL
          for (int k = 0; k < P::kSums; ++k) sums[c][k] = hn::Zero(d);
          P::sum(v[c], beside[c], terms, sums[c]);
        }
      }
      Vector<W> holds = splat(W{1});
      bool all;
      if constexpr (kKeeps<P>) {
        const auto hold = P::template finish<W>(sums[0], p.scalars, terms);
        all = hn::AllTrue(d, hold);
        holds = hn::IfThenElseZero(hold, holds);
      } else {
        all = narrow_terms<P, kColumns, W>(count, p.scalars, sums, terms, holds);
      }
      const auto good = hn::And(hn::Ne(holds, hn::Zero(d)), hn::FirstN(d, static_cast<size_t>(HWY_MIN(left, kLanes))));
      if (HWY_UNLIKELY(!all)) {
        HWY_ALIGN W held[kVectorLanes<W>];
        hn::Store(holds, d, held);
        for (int64_t i = 0; i < HWY_MIN(left, kLanes); ++i) {
          if (held[i] == 0) exact[(row + i) / 64] |= uint64_t{1} << (row + i) % 64;
        }
      }
      DESCEND_UNROLL
      for (int i = 0; i < P::kStatistics; ++i) {
        W* const to = p.statistics[i];
        const auto found = terms[P::kTerms - P::kStatistics + i];
        if (to != nullptr) store_first(d, found, to + first + row, static_cast<size_t>(HWY_MIN(left, kLanes)));
      }
      Vector<W> result[kOutputs<P>][kColumns];
      DESCEND_UNROLL
      for (size_t c = 0; c < kColumns; ++c) {
        Vector<W> added[kSome<P::kColumnSums>];
        DESCEND_UNROLL
        for (int i = 0; i < P::kColumnSums; ++i) added[i] = column_sums[part][c][i];
        Vector<W> found[kOutputs<P>];
        map_element<P>(v[c], beside[c], terms, added, found);
        if constexpr (kColumns == 1 && kHasSingle<P>) map_only_element<P>(v[c], terms, found);
        DESCEND_UNROLL
        for (int o = 0; o < kOutputs<P>; ++o) result[o][c] = found[o];
        DESCEND_UNROLL
        for (int i = 0; i < P::kColumnSums; ++i) {
          column_sums[part][c][i] = hn::IfThenElse(good, added[i], column_sums[part][c][i]);
        }
      }
      DESCEND_UNROLL
      for (int o = 0; o < kOutputs<P>; ++o) store_columns<kColumns>(result[o], out[o] + row * kStep);
    }
  }
  // Before anything is written, since results may take the place of inputs.
  for (int64_t r = 0; r < rows; ++r) {
    if (exact[r / 64] == 0) {
      r |= 63;
    } else if ((exact[r / 64] >> r % 64 & 1) != 0) {
      W* row[kOutputs<P>];
      for (int o = 0; o < kOutputs<P>; ++o) row[o] = out[o] + r * kStep;
      exact_narrow<W>(call, first + r, tile.chains, p.out.data != nullptr ? row : nullptr);
    }
  }
  if constexpr (kHasMask<P>) {
    static_assert(kOutputs<P> == 1);
    for_each_pack<W>(0, rows * kStep, [&](auto extent, int64_t c) HWY_ATTR {
      each<kPackVectors<W>>([&](size_t k) DESCEND_INLINED {
        W* const at = out[0] + c + k * kVectorLanes<W>;
        hn::Store(hn::IfThenElseZero(load_open<W>(extent, mask + c, k), hn::Load(d, at)), d, at);
      });
    });
  }
  DESCEND_UNROLL
  for (int i = 0; i < P::kColumnSums; ++i) {
    DESCEND_UNROLL
    for (size_t c = 0; c < kColumns; ++c) {
      DESCEND_UNROLL
      for (int64_t part = 0; part < kParts; ++part) {
        Vector<double> wide[2];
        to_double<W, 1>(&column_sums[part][c][i], wide);
        double* to = tile.chains[i] + static_cast<int64_t>(c) * kNarrowLanes + part * kLanes;
        each<2>([&](size_t h) DESCEND_INLINED {
          double* at = to + h * kVectorLanes<double>;
          hn::StoreU(hn::Add(hn::LoadU(Tag<double>(), at), wide[h]), Tag<double>(), at);
        });
      }
    }
  }
}

// A tile that begins with row `first`.
template <class P, class T, class W = Wide<T>>
void narrow_rows(const RowCall<W>& call, const Tile<W>& tile, int64_t first, const uint8_t* mask) {
  NarrowTile<P, W> values;
  DESCEND_UNROLL
  for (int i = 0; i < P::kInputs; ++i) read_narrow<T>(tile.in[i], tile.rows, tile.columns, values.in[i]);
  with_columns(tile.columns, [&](auto count) HWY_ATTR {
    narrow_rows_of<P, decltype(count)::value>(call, tile, first, mask, values);
  });
  const Targets<P> targets = targets_of<P, T>(call.problem, 0);
  for (int o = 0; targets.wanted() && o < kOutputs<P>; ++o) {
    const int64_t stride = targets.at[o].stride / static_cast<int64_t>(sizeof(T));
    write_tile<T>(values.out[o], tile.rows, tile.columns, {reinterpret_cast<T*>(targets.at[o].row(first)), stride});
  }
}

// Rows [first, last) of very few columns, of gradients whole chunks.
template <class P, class T, class W = Wide<T>>
HWY_NOINLINE void walk_narrow(const RowCall<W>& call, int64_t first, int64_t last) {
  const RowProblem<W>& p = call.problem;
  const RowSchedule& s = call.schedule;
  HWY_ALIGN W room[kSome<P::kParameters> * kLanes<W>];
  HWY_ALIGN double chains[kSome<P::kColumnSums>][kMostNarrow * kNarrowLanes];
  Tile<W> tile;
  MaskCursor mask(p.mask, first);
  uint8_t bytes[kReadsMask<P> ? kNarrowRows * kMostNarrow : 1];
  place_parameters<P, T>(p, 0, p.columns, room, kLanes<W>, tile.parameters);
  for (int i = 0; i < P::kColumnSums; ++i) tile.chains[i] = chains[i];
  for (int64_t chunk = first; chunk < last; chunk += s.chunk) {
    const int64_t end = HWY_MIN(chunk + s.chunk, last);
    for (int i = 0; i < P::kColumnSums; ++i) {
      for (int64_t c = 0; c < p.columns * kNarrowLanes; ++c) chains[i][c] = 0;
    }
    for (int64_t row = chunk; row < end; row += kNarrowRows) {
      place_tile<P, T>(p, row, HWY_MIN(kNarrowRows, end - row), 0, p.columns, tile);
      narrow_rows<P, T>(call, tile, row, kReadsMask<P> ? mask.tile(tile.rows, p.columns, bytes) : nullptr);
    }
    for (int i = 0; i < P::kColumnSums; ++i) {
      if (p.sums[i].slots == nullptr) continue;
      for (int64_t c = 0; c < p.columns; ++c) {
        double sum = 0;
        for (int64_t lane = 0; lane < kNarrowLanes; ++lane) sum += chains[i][c * kNarrowLanes + lane];
        p.sums[i].slots[chunk / s.chunk * p.columns + c] = sum;
      }
    }
  }
}

#endif

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
