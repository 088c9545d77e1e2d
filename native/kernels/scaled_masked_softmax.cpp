#include "kernels/scaled_masked_softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/rows/engine.h"
#include "kernels/rows/shared-inl.h"
#include "kernels/simd/dispatch.h"
#include "kernels/simd/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

//   z = -10000 where masked, scale * x elsewhere;  e = exp(z - max(z)),  y = e / sum(e)
// Elements of 16 bits have scores in units of ln 2, for powers of two. The product with the scale is rounded in the
// largest score alone, which all differences have in common.
template <class T>
struct SoftmaxProgram {
  enum Input { kX, kInputs };
  enum Term { kNumbers = 0, kPivot = 0, kTotal, kReciprocal, kTerms };
  enum Scalar { kScale, kColumns, kScalars };
  enum Sum { kSums = 1, kColumnSums = 0 };
  static constexpr int kParameters = 0, kStatistics = 0, kRowsMapped = 1;
  static constexpr bool kKeeps = true, kTotals = true, kBrief = sizeof(T) == 2;
  static constexpr int kMapped[2] = {kBrief ? kReciprocal : kTotal, kTerms};
  static constexpr Nan kNan = Nan::kOfBfloat16;  // rows with any are computed in double

  static constexpr double kUnits = kBrief ? std::numbers::log2e : 1;

  // The rounding of a largest score as far from 0 may take exponentials out of the range. Of 16 bits, what is masked is
  // nothing beside a largest score nearer to 0.
  static constexpr double kRounds = kBrief ? 0x1p28 : sizeof(T) == 4 ? 0x1p30 : 0x1p59;
  static constexpr double kFar = kBrief ? 9000 * kUnits : kRounds;

  struct Scale {
    using W = Wide<T>;
    explicit HWY_INLINE Scale(const double* scalars)
        : factor(splat(static_cast<W>(static_cast<double>(static_cast<W>(scalars[kScale])) * kUnits))),
          masked(splat(static_cast<W>(-10000 * kUnits))) {}
    Vector<W> factor, masked;
  };

  template <class V, class M>
  static HWY_INLINE V score(V x, M open, const Scale& scale) {
    return hn::IfThenElse(open, hn::Mul(x, scale.factor), scale.masked);
  }

  // Far from 0 the product is rounded as the largest score was, lest none of them be near it.
  template <bool kIsFar, class V, class M>
  static HWY_INLINE V kept(V x, M open, V max, const Scale& scale) {
    const Tag<Wide<T>> d;
    V difference = hn::MulSub(x, scale.factor, max);
    if constexpr (kIsFar) {
      const auto rounds = hn::Ge(hn::Abs(max), hn::Set(d, static_cast<Wide<T>>(kRounds)));
      difference = hn::IfThenElse(rounds, hn::Sub(hn::Mul(x, scale.factor), max), difference);
    }
    if constexpr (!kBrief || kIsFar) difference = hn::IfThenElse(open, difference, hn::Sub(scale.masked, max));
    if constexpr (kBrief) {
      return brief_power_of_two(difference, kIsFar ? hn::FirstN(d, hn::Lanes(d)) : open);
    } else {
      return exp<T, true>(difference);
    }
  }

  // Near the score of what is masked the rounding of that, in units of ln 2, would show, and so would that of any score
  // where the product is rounded before the difference; unless all elements are even.
  template <class W, class V>
  static HWY_INLINE auto finish(const V* totals, const double* scalars, V* row) {
    const hn::DFromV<V> d;
    const auto number = [&](double v) HWY_ATTR { return hn::Set(d, static_cast<hn::TFromV<V>>(v)); };
    row[kTotal] = totals[0];
    row[kReciprocal] = hn::Div(number(1), totals[0]);
    const auto is_number = hn::Gt(totals[0], number(0));
    if constexpr (!kBrief) return is_number;
    const auto are_even = hn::Ge(totals[0], number(scalars[kColumns] * (1 - 0x1p-18)));
    auto is_exact = hn::Gt(row[kPivot], number(-9000 * kUnits));
    if (!HWY_NATIVE_FMA) is_exact = hn::And(is_exact, hn::Lt(hn::Abs(row[kPivot]), number(0x1p10)));
    return hn::And(is_number, hn::Or(are_even, is_exact));
  }

  // One correction makes the product with the reciprocal what a division, which is slow, would give. The last bit of
  // it is lost on elements of 16 bits.
  template <class V>
  static HWY_INLINE V map(const V* e, const V*, const V* row, V*) {
    const V quotient = hn::Mul(*e, row[kReciprocal]);
    if constexpr (kBrief) return quotient;
    return hn::MulAdd(hn::NegMulAdd(quotient, row[kTotal], *e), row[kReciprocal], quotient);
  }
};

// exp of numbers at most 0, for rows in double: that of the C library is not the same on every machine.
inline void exps_of(const double* x, int64_t n, double* e) {
  for_each_pack<double>(0, n, [&](auto extent, int64_t c) HWY_ATTR {
    Pack<double> pack = load_pack(extent, x + c);
    for (auto& v : pack.v) v = exp<double>(v);
    store(extent, pack, e + c);
  });
}

template <class T>
RowKernels<Wide<T>> softmax_kernels() {
  return row_kernels<SoftmaxProgram<T>, T>();
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace descend::kernels::DESCEND_TARGET {
namespace {

// n scores, rounded as those of the fast way are; the largest.
template <class W>
double exact_scores(int64_t n, const double* const* in, const double* scale, double* z) {
  double max = std::numeric_limits<double>::lowest();
  for (int64_t c = 0; c < n; ++c) {
    z[c] = in[1][c] != 0 ? -10000 : static_cast<W>(in[0][c] * static_cast<W>(scale[0]));
    max = std::max(max, z[c]);
  }
  return max;
}

// From scores.
void exact_exps(int64_t n, double* z, double max) {
  for (int64_t c = 0; c < n; ++c) z[c] -= max;
  exps_of(z, n, z);
}

// The sum so far is of exponentials less the largest score so far.
template <class W>
void exact_sums(int64_t n, const double* const* in, const double* const*, const double* scale, double* sums) {
  double z[kExactColumns] = {}, max = std::max(sums[1], exact_scores<W>(n, in, scale, z)), factor = sums[1];
  exact_exps(1, &factor, max);
  exact_exps(n, z, max);
  sums[0] *= factor;
  for (int64_t c = 0; c < n; ++c) sums[0] += z[c];
  sums[1] = max;
}

template <class W>
void exact_map(int64_t n, const double* const* in, const double* const*, const double* scale, const double* totals,
               double* y, double* const*) {
  exact_scores<W>(n, in, scale, y);
  exact_exps(n, y, totals[1]);
  for (int64_t c = 0; c < n; ++c) y[c] /= totals[0];
}

}  // namespace

template <class T>
void scaled_masked_softmax(const ScaledMaskedSoftmax<T>& p) {
  using W = Wide<T>;
  static const RowOperator<W> op{
      .kernels = softmax_kernels<T>(), .exact_sums = exact_sums<W>, .exact_map = exact_map<W>};
  const RowProblem<W> problem{.rows = p.rows,
                              .columns = p.columns,
                              .element = kElementOf<T>,
                              .in = {stream_of(p.x)},
                              .out = stream_of(p.y),
                              .scalars = {p.scale, static_cast<double>(p.columns)},
                              .mask = p.mask,
                              .parameters = {},
                              .sums = {}};
  run_forward(problem, op, nullptr);
}

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_KERNEL(void, scaled_masked_softmax, (const ScaledMaskedSoftmax<T>& problem), problem)
