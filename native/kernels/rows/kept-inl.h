// Rows whose first pass leaves what it makes of each element to the second: softmax's exponentials, which take long.
//
// The pivot of such a row is its largest score. Rows are read twice for their sums, first for the pivot. What the sums
// are made of is kept, and the second pass reads that, not the input. What is beyond kept_room() is made again.
//
// A program that goes this way has one input, one sum and no parameters. Instead of sum() it has, where `open` says
// which elements are not masked:
//   Scale                             what the following need of the call, made of its numbers
//   score(v, open, scale)             what the pivot is the largest of
//   kept<kFar>(v, open, pivot, scale) what is summed, and kept; map() gets it for the input. Far: the pivot
//                                     is at least so far from 0 as the program's kFar
//   kMapped                           the first of the terms that map() reads, and behind the last
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/rows/prefetch-inl.h"
#include "kernels/rows/results-inl.h"
#include "kernels/rows/spread-inl.h"
#include "kernels/rows/stage-inl.h"
#include "kernels/simd/doubles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// A row's last vector, of which `count` lanes at the front are the row's; found once for many rows.
template <class W>
struct Front {
  hn::Mask<Tag<W>> lanes;
  size_t count;
  bool readable = false;  // all of the vector

  HWY_INLINE explicit Front(size_t n) : lanes(hn::FirstN(Tag<W>(), n)), count(n) {}
};
template <class D, class W, class R = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_bits(const Front<W>& front, D d, const R* p, size_t k) {
#if HWY_TARGET == HWY_AVX3
  using Bits = decltype(hn::Mask<D>::raw);
  return hn::MaskedLoad(hn::Mask<D>{static_cast<Bits>(front.lanes.raw)}, d, p + k * hn::MaxLanes(d));
#else
  return front.readable ? load_bits(Full(), d, p, k) : load_bits(Part{front.count}, d, p, k);
#endif
}
template <class W>
HWY_INLINE Vector<W> inside_or(const Front<W>& front, size_t, Vector<W> v, Vector<W> outside) {
  return hn::IfThenElse(front.lanes, v, outside);
}

// f(kRest), a constant: how many vectors a row has behind its whole packs. Vectors of one lane are counted by the loop
// over them, and kRest is 0: a pack has too many to compile a loop for each number.
template <class W, size_t kRest = 0, class F>
HWY_INLINE void with_rest(int64_t columns, F f) {
  constexpr int64_t kColumns = kRest * kVectorLanes<W>;
  if constexpr (kVectorLanes<W> > 1 && kRest < kPackVectors<W>) {
    if (columns % static_cast<int64_t>(kPackLanes<W>) > kColumns) return with_rest<W, kRest + 1>(columns, f);
  }
  f(std::integral_constant<size_t, kRest>());
}

// A block of a tile's columns.
struct Block {
  int64_t begin, columns;
};

// f(block) for all between two columns of a row.
template <class F>
HWY_INLINE void for_each_block(int64_t begin, int64_t end, F f) {
  for (int64_t c = begin; c < end; c += kBlockColumns) f(Block{c, HWY_MIN(kBlockColumns, end - c)});
}

// to[r] = what op puts together of a block of each row of a tile. of(r, fold) calls fold(vector_of) once:
// vector_of(extent, x, bytes, c, k) is vector k of a pack, which begins with column c of the block; x and bytes are the
// elements and the mask from there on.
template <size_t kRest, class T, class Op, class F, class W = Wide<T>>
HWY_INLINE void fold_block(const Tile<W>& tile, const Block& block, W neutral, Op op, W* to, F of) {
  constexpr int64_t kLanes = kVectorLanes<W>, kStep = kPackLanes<W>;
  const int64_t columns = block.columns, whole = columns / kStep * kStep;
  const int64_t last = kRest == 0 ? columns : whole + static_cast<int64_t>(kRest - 1) * kLanes;
  Front<W> front(static_cast<size_t>(columns - last));
  uint8_t buffer[kBlockColumns];
  // Copies: the compiler must think that a vector that is stored may change those of the tile.
  const Stream in{tile.in[0].data + block.begin * static_cast<int64_t>(sizeof(T)), tile.in[0].stride};
  const uint8_t* const dense_bytes = tile.dense ? tile.mask_bytes : nullptr;
  const int64_t tile_rows = tile.rows;
  for_each_fold<W>(tile_rows, [&](int64_t first, int64_t rows, Vector<W>* lanes) DESCEND_INLINED {
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t r = first + i;
      const T* const x = reinterpret_cast<const T*>(in.row(r));
      const uint8_t* const bytes =
          dense_bytes != nullptr ? dense_bytes + r * columns : tile.mask[r].columns(block.begin, columns, buffer);
      of(r, [&](auto vector_of) DESCEND_INLINED {
        Vector<W> acc[kPackVectors<W>];
        each<kPackVectors<W>>([&](size_t k) DESCEND_INLINED { acc[k] = splat(neutral); });
        const auto add = [&](auto extent, int64_t c, size_t k) DESCEND_INLINED {
          c += static_cast<int64_t>(k) * kLanes;
          acc[k] = op(acc[k], inside_or<W>(extent, 0, vector_of(extent, x + c, bytes + c, c, k), splat(neutral)));
        };
        int64_t c = 0;
        for (; c + kStep <= columns; c += kStep) {
          each<kPackVectors<W>>([&](size_t k) DESCEND_INLINED { add(Full(), c, k); });
        }
        if constexpr (kLanes == 1) {
          for (size_t k = 0; c + static_cast<int64_t>(k) < columns; ++k) add(Full(), c, k);
        } else if constexpr (kRest > 0) {
          front.readable = dense_bytes != nullptr && (tile_rows - r) * columns >= last + kLanes;
          each<kRest - 1>([&](size_t k) DESCEND_INLINED { add(Full(), c, k); });
          add(front, c, kRest - 1);
        }
        lanes[i] = fold_to_vector<W>(acc, op);
      });
    }
    fold_rows<W>(lanes, to + first, op);
  });
}

// The largest score of each row in a block.
template <class P, class T, size_t kRest, class W = Wide<T>>
HWY_NOINLINE void find_largest(const RowProblem<W>& p, const Tile<W>& tile, const Block& block, W* largest) {
  const typename P::Scale scale(p.scalars);
  fold_block<kRest, T>(
      tile, block, std::numeric_limits<W>::lowest(), Largest(), largest, [&](int64_t, auto fold) DESCEND_INLINED {
        fold([&](auto extent, const T* x, const uint8_t* bytes, int64_t, size_t)
                 DESCEND_INLINED { return P::score(load(extent, x, 0), load_open<W>(extent, bytes, 0), scale); });
      });
}

// What is kept of a block of each row, and its sum.
template <class P, class T, size_t kRest, class W = Wide<T>>
HWY_NOINLINE void keep_block(const RowProblem<W>& p, const Tile<W>& tile, const Block& block, W* kept, W* sums) {
  const typename P::Scale scale(p.scalars);
  const W far = static_cast<W>(P::kFar);
  const W* const pivots = tile.terms[0];
  const int64_t step = tile.kept_columns;
  const int64_t ahead = tile.prefetch.maps ? tile.prefetch.beyond[0] / static_cast<int64_t>(sizeof(T)) : 0;
  fold_block<kRest, T>(tile, block, W{0}, Sum(), sums, [&](int64_t r, auto fold) DESCEND_INLINED {
    const auto pivot = splat(pivots[r]);
    W* const to = kept + r * step;
    const auto keep = [&](auto is_far) DESCEND_INLINED {
      fold([&](auto extent, const T* x, const uint8_t* bytes, int64_t c, size_t k) DESCEND_INLINED {
        if (k == 0) prefetch_pack<prefetch_distant>(x, ahead);
        const auto open = load_open<W>(extent, bytes, 0);
        const auto v = P::template kept<is_far()>(load(extent, x, 0), open, pivot, scale);
        hn::StoreU(v, Tag<W>(), to + c);  // what it writes behind the row is the next row's, and written after it
        return v;
      });
    };
    HWY_UNLIKELY(std::abs(pivots[r]) >= far) ? keep(std::true_type()) : keep(std::false_type());
  });
}

// The pivots and sums of a tile; what is kept of rows that are not too long for that.
template <class P, class T, class W = Wide<T>>
HWY_INLINE void keep_rows(const RowProblem<W>& p, Tile<W>& tile) {
  HWY_ALIGN W found[kMostTileRows];
  const int64_t n = tile.rows;
  for_each_block(0, tile.columns, [&](const Block& block) HWY_ATTR {
    with_rest<W>(block.columns, [&](auto rest) HWY_ATTR { find_largest<P, T, rest()>(p, tile, block, found); });
    for (int64_t r = 0; r < n; ++r) {
      tile.terms[0][r] = block.begin == 0 ? found[r] : HWY_MAX(tile.terms[0][r], found[r]);
    }
  });
  for_each_block(0, tile.columns, [&](const Block& block) HWY_ATTR {
    with_rest<W>(block.columns, [&](auto rest) HWY_ATTR {
      keep_block<P, T, rest()>(p, tile, block, tile.kept + HWY_MIN(block.begin, tile.most_kept), found);
    });
    for_each_row_vector(n, [&](int64_t r) HWY_ATTR {
      const Tag<double> d;
      double* const sum = tile.sums[0] + r;
      const auto of_block = load_as_double(found + r);
      hn::Store(block.begin == 0 ? of_block : hn::Add(hn::Load(d, sum), of_block), d, sum);
    });
  });
}

// Whether rows without gaps are mapped as if they were one: of 16 bits, which take longer to store, short ones whose
// last pack would be half empty or more.
template <class T>
HWY_INLINE bool map_as_one(int64_t columns) {
  constexpr int64_t kLanes = kPackLanes<Wide<T>>;
  const int64_t rest = columns % kLanes;
  return sizeof(T) == 2 && columns < 2 * kLanes && 0 < rest && rest <= kLanes / 2;
}

// How far what is kept of a row lies from that of the next.
template <class T>
HWY_INLINE int64_t kept_columns_of(int64_t columns, bool dense) {
  return dense && map_as_one<T>(columns) ? columns : ceil_div(columns, kLineElements<Wide<T>>) * kLineElements<Wide<T>>;
}

// n results from what is kept of them; term(i, c, k): term i of vector k of the pack that begins at c.
template <class P, class T, class F, class W = Wide<T>>
HWY_INLINE void map_kept(const W* kept, int64_t n, T* out, int64_t lead, bool streams, F term) {
  const auto map = [&](auto extent, int64_t c) DESCEND_INLINED {
    each<kPackPairs<W>>([&](size_t pair) DESCEND_INLINED {
      Vector<W> result[2];
      each<2>([&](size_t j) DESCEND_INLINED {
        const size_t k = 2 * pair + j;
        const Vector<W> v = hn::LoadU(Tag<W>(), kept + c + k * kVectorLanes<W>);
        Vector<W> terms[P::kTerms];
        DESCEND_UNROLL
        for (int i = P::kMapped[0]; i < P::kMapped[1]; ++i) terms[i] = term(i, c, k);
        result[j] = P::template map<Vector<W>>(&v, nullptr, terms, nullptr);
      });
      store_results<P>(extent, streams, result[0], result[1], out + c, pair);
    });
  };
  if (lead > 0) map(Part{static_cast<size_t>(lead)}, 0);
  for_each_pack<W>(lead, n, map);
}

// The results of rows [first, last) of a tile.
template <class P, class T, bool kStreams, class W = Wide<T>>
HWY_NOINLINE void map_kept_rows(const RowProblem<W>& p, const Tile<W>& tile, int64_t first, int64_t last,
                                const Stream& to) {
  constexpr int kTerms = P::kMapped[1] - P::kMapped[0];
  // Copies, as in fold_block().
  const int64_t columns = tile.columns, step = tile.kept_columns;
  const int64_t most_kept = HWY_MIN(columns, tile.most_kept);
  const bool in_lines = kStreams && tile.in_lines;
  const Stream results = to;
  const W* const terms = tile.terms[0];
  const W* kept = tile.kept + first * step;
  if (tile.dense && map_as_one<T>(columns)) {
    Spread<T, sizeof(T) == 2 ? kDenseElements : 1> spread[kTerms];  // of others it is not used
    each<kTerms>([&](size_t i) DESCEND_INLINED {
      spread[i].fill(tile.terms[P::kMapped[0] + static_cast<int>(i)] + first, last - first, columns);
    });
    return map_kept<P>(kept, (last - first) * columns, reinterpret_cast<T*>(results.row(first)), 0, kStreams,
                       [&](int i, int64_t c, size_t k) DESCEND_INLINED { return spread[i - P::kMapped[0]].at(c, k); });
  }
  for (int64_t r = first; r < last; ++r, kept += step) {
    T* const out = reinterpret_cast<T*>(results.row(r));
    const auto term = [&](int i, int64_t, size_t) DESCEND_INLINED { return splat(terms[i * kMostTileRows + r]); };
    map_kept<P>(kept, most_kept, out, in_lines ? before_line(out, most_kept) : 0, kStreams, term);
    for_each_block(most_kept, columns, [&](const Block& block) HWY_ATTR {
      HWY_ALIGN W sums[kFoldRows<W>];
      W* const again = tile.kept + most_kept;
      with_rest<W>(block.columns, [&](auto rest) HWY_ATTR { keep_block<P, T, rest()>(p, tile, block, again, sums); });
      T* const at = out + block.begin;
      map_kept<P>(again, block.columns, at, in_lines ? before_line(at, block.columns) : 0, kStreams, term);
    });
  }
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
