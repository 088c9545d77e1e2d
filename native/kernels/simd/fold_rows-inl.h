// The sums of several rows' lanes at a time: each the same tree as fold_vector's, but one shuffle serves two rows or
// more, and the rows' chains run side by side.
#pragma once

#include "kernels/simd/doubles-inl.h"
#include "kernels/simd/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Lane i + lane i + kDistance of every 2 * kDistance lanes: a's sums in the lower half of these, b's in the upper.
template <size_t kDistance, class D, class Op>
HWY_INLINE hn::Vec<D> fold_step(D d, hn::Vec<D> a, hn::Vec<D> b, Op op) {
#if HWY_TARGET == HWY_SCALAR
  (void)d, (void)b, (void)op;
  return a;
#else
  constexpr size_t kBytes = kDistance * sizeof(hn::TFromD<D>);
  if constexpr (kBytes >= 16 && 2 * kDistance == hn::MaxLanes(D())) {
    return op(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a));
  } else if constexpr (kBytes == 16) {
    return op(hn::OddEvenBlocks(hn::SwapAdjacentBlocks(b), a), hn::OddEvenBlocks(b, hn::SwapAdjacentBlocks(a)));
  } else if constexpr (kBytes == 8) {
    const hn::Repartition<double, D> pairs;
    const auto a2 = hn::BitCast(pairs, a), b2 = hn::BitCast(pairs, b);
    return op(hn::BitCast(d, hn::InterleaveLower(pairs, a2, b2)), hn::BitCast(d, hn::InterleaveUpper(pairs, a2, b2)));
  } else {
    return op(hn::OddEven(hn::DupEven(b), a), hn::OddEven(b, hn::DupOdd(a)));
  }
#endif
}

// Lane i of the result is the sum of v[i]'s lanes. v holds a vector for each lane that a vector has; it is used up.
template <class D, class Op, size_t kCount = hn::MaxLanes(D())>
HWY_INLINE hn::Vec<D> fold_each(D d, hn::Vec<D>* v, Op op) {
  if constexpr (kCount == 1) {
    return v[0];
  } else {
    DESCEND_UNROLL
    for (size_t i = 0; i < kCount / 2; ++i) v[i] = fold_step<kCount / 2>(d, v[i], v[i + kCount / 2], op);
    return fold_each<D, Op, kCount / 2>(d, v, op);
  }
}

// As DoubleLanes of the pack fold, down to one vector. kHalf: nothing but zeros lies in the pack's second half.
template <bool kHalf, class W>
HWY_INLINE Vector<double> fold_as_double(const Pack<W>& pack) {
  constexpr size_t kCount = kHalf && HWY_TARGET != HWY_SCALAR ? kPackVectors<W> / 2 : kPackVectors<W>;
  Vector<double> lanes[kCount * kVectorLanes<W> / kVectorLanes<double>];
  to_double<W, kCount>(pack.v, lanes);
  return fold_to_vector<double>(lanes);
}

// Rows that are folded at a time, whatever the target: as many as the widest vector has lanes.
template <class W>
inline constexpr int64_t kFoldRows = 64 / sizeof(W);

// to[i] = the sum of v[i]'s lanes, for kFoldRows rows; v is used up, to is aligned.
template <class W, class Op = Sum>
HWY_INLINE void fold_rows(Vector<W>* v, W* to, Op op = Op()) {
  const Tag<W> d;
  DESCEND_UNROLL
  for (int64_t i = 0; i < kFoldRows<W>; i += kVectorLanes<W>) hn::Store(fold_each(d, v + i, op), d, to + i);
}

// Calls f(r, n, lanes) for every n <= kFoldRows rows from r on; it sets lanes[0] to lanes[n - 1], the others are zero.
template <class W, class F>
HWY_INLINE void for_each_fold(int64_t rows, F f) {
  for (int64_t r = 0; r < rows; r += kFoldRows<W>) {
    Vector<W> lanes[kFoldRows<W>];
    each<kFoldRows<W>>([&](size_t i) DESCEND_INLINED { lanes[i] = hn::Zero(Tag<W>()); });
    f(r, HWY_MIN(rows - r, kFoldRows<W>), lanes);
  }
}

// Calls f(r) for every vector of doubles that holds a number for each of `rows` rows, r the first of them.
template <class F>
HWY_INLINE void for_each_row_vector(int64_t rows, F f) {
  for (int64_t r = 0; r < rows; r += kVectorLanes<double>) f(r);
}

// to[r] = the sum of the lanes of of_row(r), rows beyond the last being zero; `to` is aligned, and has room for whole
// folds.
template <class W, class F>
HWY_INLINE void fold_each_row(int64_t rows, F of_row, W* to) {
  const Tag<W> d;
  constexpr int64_t kLanes = kVectorLanes<W>;
  const auto zero = hn::Zero(d);  // as which the other vectors of a pack are added: of -0 it makes 0
  for (int64_t r = 0; r < ceil_div(rows, kFoldRows<W>) * kFoldRows<W>; r += kLanes) {
    Vector<W> v[kLanes];
    if (rows - r >= kLanes) {
      each<kLanes>([&](size_t i) DESCEND_INLINED { v[i] = hn::Add(of_row(r + static_cast<int64_t>(i)), zero); });
    } else {
      for (int64_t i = 0; i < kLanes; ++i) v[i] = r + i < rows ? hn::Add(of_row(r + i), zero) : zero;
    }
    hn::Store(fold_each(d, v, Sum()), d, to + r);
  }
}

// Division by the same number again and again: a product with its reciprocal, and a correction that makes it what a
// division, which is slow, would give. (Of what is subnormal the last bit may differ.)
class Divisor {
 public:
  HWY_INLINE explicit Divisor(double by) : by_(splat(by)), reciprocal_(splat(1 / by)) {}

  HWY_INLINE Vector<double> operator()(Vector<double> v) const {
    const auto quotient = hn::Mul(v, reciprocal_);
    const auto corrected = hn::MulAdd(hn::NegMulAdd(quotient, by_, v), reciprocal_, quotient);
    return hn::IfThenElse(hn::IsInf(v), v, corrected);
  }

 private:
  Vector<double> by_, reciprocal_;
};

// v rounded to W, one after the other at p; as doubles again.
template <class D, class W>
HWY_INLINE hn::Vec<D> store_rounded(D d, hn::Vec<D> v, W* p) {
  const hn::Rebind<W, D> dw;
  const auto rounded = narrow_double<W>(d, v);
  hn::StoreU(rounded, dw, p);
  return widen_to_double(d, rounded);
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
