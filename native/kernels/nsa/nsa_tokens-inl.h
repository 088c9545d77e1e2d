// NSA compression: neighbouring tokens, weighted, added to the sums of the windows that cover them.
#pragma once

#include "kernels/rows/prefetch-inl.h"
#include "kernels/simd/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Neighbouring positions whose terms are added on their own before they join the others; and how many of them are added
// one after the other. Short chains keep more of what a window of many positions has.
inline constexpr int kPositions = 8;
inline constexpr int kChain = 4;

// Columns are worked on in pairs of vectors, but for the last vector of a head.
template <class W>
inline constexpr int64_t kPairLanes = 2 * kVectorLanes<W>;

template <class W>
HWY_INLINE int64_t depth_in_pairs(int64_t depth) {
  return (depth + kPairLanes<W> - 1) / kPairLanes<W> * kPairLanes<W>;
}

// Neighbouring tokens, the windows that cover all of them, and some columns of some heads.
template <class T>
struct CoveredTokens {
  const T* input;  // of the first token
  int64_t input_stride;
  Ask ask;                // for what will be wanted soon
  const T* ahead;         // this
  int64_t left;           // columns of that token, from there on
  int64_t columns;        // of all heads, side by side
  const Wide<T>* weight;  // of the first token's position in the oldest window
  int64_t weight_stride;  // to the next token
  int64_t weight_window;  // back to the next window
  Wide<T>* sums;
  int64_t place, row, rows;  // of the oldest window's sums, from one to the next, and where they begin again
  int64_t windows;
  int64_t heads, depth;
  int64_t head_step, padded;  // from one head to the next, in the input and among the sums
};

// Columns of kCount neighbouring tokens.
template <int kCount, size_t kVectors, class T>
struct Tokens {
  using W = Wide<T>;

  template <class Extent>
  HWY_INLINE Tokens(Extent extent, const T* input, int64_t stride) {
    // Vector after vector, for the compiler to read the input in place.
    DESCEND_UNROLL
    for (size_t k = 0; k < kVectors; ++k) {
      DESCEND_UNROLL
      for (int i = 0; i < kCount; ++i) {
        const T* from = input + i * stride;
        x[i][k] = load(extent, from, k);
      }
    }
  }

  // The weighted tokens [kFirst, kLast), one after the other.
  template <int kFirst, int kLast>
  HWY_INLINE void chain(const W* weight, int64_t stride, Vector<W>* part) const {
    const auto first = splat(weight[kFirst * stride]);
    DESCEND_UNROLL
    for (size_t k = 0; k < kVectors; ++k) part[k] = hn::Mul(x[kFirst][k], first);
    DESCEND_UNROLL
    for (int i = kFirst + 1; i < kLast; ++i) {
      const auto w = splat(weight[i * stride]);
      DESCEND_UNROLL
      for (size_t k = 0; k < kVectors; ++k) part[k] = hn::MulAdd(x[i][k], w, part[k]);
    }
  }

  HWY_INLINE void add_to(const W* weight, int64_t stride, W* sums) const {
    const Tag<W> d;
    Vector<W> part[kVectors], rest[kVectors];
    chain<0, HWY_MIN(kCount, kChain)>(weight, stride, part);
    if constexpr (kCount > kChain) chain<kChain, kCount>(weight, stride, rest);
    DESCEND_UNROLL
    for (size_t k = 0; k < kVectors; ++k, sums += kVectorLanes<W>) {
      if constexpr (kCount > kChain) part[k] = hn::Add(part[k], rest[k]);
      hn::StoreU(hn::Add(hn::LoadU(d, sums), part[k]), d, sums);
    }
  }

  Vector<W> x[kCount][kVectors];
};

// Groups of kCount tokens, `depth` columns of each head from the first on: each token is read and widened once for all
// windows.
template <int kCount, size_t kVectors, class T, class Extent>
HWY_NOINLINE void add_groups(Extent extent, const CoveredTokens<T>& c, int64_t first, int64_t depth, int64_t groups) {
  using W = Wide<T>;
  constexpr int64_t kStep = kVectors * kVectorLanes<W>;
  const int64_t heads = c.heads, head_step = c.head_step, padded = c.padded, windows = c.windows;
  const int64_t input_stride = c.input_stride, row = c.row, rows = c.rows, first_place = c.place;
  const int64_t weight_stride = c.weight_stride, weight_window = c.weight_window;
  // Tokens are read side by side, but asked for one after the other, as the processor does by itself where it can.
  const bool asks = c.ask != Ask::kNothing;
  const bool in_order = kAsksSecondLevel ? reads_sparingly<T>(c.ask) : reads_in_order<T>(c.ask);
  const int64_t columns = c.columns, gap = input_stride - columns;
  const T* ahead = c.ahead;
  int64_t left = c.left;
  const T* input = c.input + first;
  const W* weight = c.weight;
  W* const first_sums = c.sums + first;
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t n = 0; n < heads; ++n) {
      for (int64_t d = 0; d < depth; d += kStep) {
        constexpr int64_t kElements = kCount * kStep;
        if (in_order) await_reads();
        if (asks) {
          DESCEND_UNROLL
          for (int64_t i = 0; i < kElements; i += 64 / sizeof(T)) prefetch_distant(ahead + i);
          ahead += kElements;
          left -= kElements;
          if (left <= 0) {
            ahead += gap;
            left += columns;
          }
        }
        const Tokens<kCount, kVectors, T> tokens(extent, input + n * head_step + d, input_stride);
        const W* w = weight + n;
        W* sums = first_sums + n * padded + d;
        int64_t place = first_place;
        for (int64_t i = 0; i < windows; ++i) {
          tokens.add_to(w, weight_stride, sums + place);
          w -= weight_window;
          place = place + row == rows ? 0 : place + row;
        }
      }
    }
    input += kCount * input_stride;
    weight += kCount * weight_stride;
  }
}

// All columns: whole pairs of vectors, then what is left of each head, which asks for what follows what the pairs have
// asked for. (c moves on to that: a copy of it took up to a tenth of the time of a small call.)
template <int kCount, class T>
HWY_INLINE void add_heads(CoveredTokens<T>& c, int64_t groups) {
  using W = Wide<T>;
  const int64_t pairs = c.depth / kPairLanes<W> * kPairLanes<W>, rest = c.depth - pairs;
  c.left = c.columns;
  if (pairs > 0) {
    if constexpr (kCount == kPositions) {
      add_groups<kCount, 2>(Full(), c, 0, pairs, groups);
    } else {
      add_groups<kCount, 2>(Part{kPairLanes<W>}, c, 0, pairs, groups);  // a short group is not worth its own code
    }
  }
  if (rest == 0) return;
  const int64_t asked = groups * kCount * c.heads * pairs;  // elements
  c.ahead += asked / c.columns * c.input_stride + asked % c.columns;
  c.left -= asked % c.columns;
  if (rest == kVectorLanes<W>) {
    add_groups<kCount, 1>(Full(), c, pairs, 1, groups);
  } else {
    add_groups<kCount, 2>(Part{static_cast<size_t>(rest)}, c, pairs, 1, groups);
  }
}

template <class T>
HWY_INLINE void add_rest(CoveredTokens<T>& c, int64_t count) {
  switch (count) {
    case 1:
      return add_heads<1>(c, 1);
    case 2:
      return add_heads<2>(c, 1);
    case 3:
      return add_heads<3>(c, 1);
    case 4:
      return add_heads<4>(c, 1);
    case 5:
      return add_heads<5>(c, 1);
    case 6:
      return add_heads<6>(c, 1);
    case 7:
      return add_heads<7>(c, 1);
  }
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
