// A step of AdamW. In W, the type of the arithmetic:
//
//   m = beta1 m + (1 - beta1) g        v = beta2 v + (1 - beta2) g^2        u = v, or the largest v so far
//   var = (1 - lr weight_decay) var - lr / (1 - beta1^t) m / (sqrt(u / (1 - beta2^t)) + eps)
//
// A product with a number near 1 is what is left of the other factor when a small share of it is taken away: its
// rounding is that of the share. Where that gives no finite number, as of infinities, the formula is computed as it is.
#include "kernels/apply_adam_w_v2.h"

#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/elements/elements-inl.h"
#include "kernels/simd/dispatch.h"
#include "runtime/fp_environment.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Of each share the factor of the usual way, and the mask.
template <class W>
struct ShareVectors {
  HWY_INLINE explicit ShareVectors(const typename AdamWShares<W>::Share& share)
      : factor(splat(share.mostly == 0 ? share.keep : -share.drop)), mostly(splat(share.mostly)) {}
  Vector<W> factor, mostly;
};

template <class W, bool kMost>
struct AdamWProgram {
  static constexpr int kInputs = 4 + kMost, kOutputs = 3 + kMost;
  static constexpr size_t kPacks = 1;  // two take 1.1 times as long: they are lines of seven streams

  AdamWShares<W> shares;

  template <class T, class V, size_t kN>
  HWY_INLINE void map(const V (&in)[kInputs][kN], V (&out)[kOutputs][kN]) const {
    const ShareVectors<W> of_m(shares.m), of_v(shares.v), of_var(shares.var);
    const V drop_m = splat(shares.m.drop), drop_v = splat(shares.v.drop), sign = splat(shares.sign);
    V sum = hn::Zero(Tag<W>());
    each<kN>([&](size_t k) DESCEND_INLINED {
      const V var = in[0][k], m = in[1][k], v = in[2][k], g = hn::Xor(in[kInputs - 1][k], sign);
      // m - (1 - beta1)(m - g), or g + beta1 (m - g)
      const V m_now = hn::MulAdd(of_m.factor, hn::Sub(m, g), hn::IfVecThenElse(of_m.mostly, m, g));
      const V v_now = hn::MulAdd(hn::Mul(drop_v, g), g, hn::MulAdd(of_v.factor, v, hn::And(of_v.mostly, v)));
      const V move = step(in, m_now, v_now, k, out);
      const V var_now = hn::Add(hn::And(of_var.mostly, var), hn::MulAdd(of_var.factor, var, move));
      out[0][k] = var_now;
      out[1][k] = m_now;
      out[2][k] = v_now;
      sum = hn::Add(sum, hn::Add(var_now, hn::Add(m_now, v_now)));
    });
    if (HWY_LIKELY((hn::AllTrue(Tag<W>(), hn::IsFinite(sum))))) return;
    each<kN>([&](size_t k) DESCEND_INLINED {
      const auto finite_or = [](V usual, V plain)
                                 DESCEND_INLINED { return hn::IfThenElse(hn::IsFinite(usual), usual, plain); };
      const V var = in[0][k], m = in[1][k], v = in[2][k], g = hn::Xor(in[kInputs - 1][k], sign);
      const V m_now = finite_or(out[1][k], hn::MulAdd(splat(shares.m.keep), m, hn::Mul(drop_m, g)));
      const V v_now = finite_or(out[2][k], hn::MulAdd(splat(shares.v.keep), v, hn::Mul(hn::Mul(drop_v, g), g)));
      const V move = step(in, m_now, v_now, k, out);
      const V usual = hn::Add(hn::And(of_var.mostly, var), hn::MulAdd(of_var.factor, var, move));
      out[0][k] = finite_or(usual, hn::MulAdd(splat(shares.var.keep), var, move));
      out[1][k] = m_now;
      out[2][k] = v_now;
    });
  }

  // What is added to var; the largest v goes to the results.
  template <class V, size_t kN>
  HWY_INLINE V step(const V (&in)[kInputs][kN], V m, V v, size_t k, V (&out)[kOutputs][kN]) const {
    V used = v;
    if constexpr (kMost) {
      const V most = in[3][k];
      used = hn::IfThenElse(hn::Or(hn::Gt(most, v), hn::IsNaN(most)), most, v);
      out[3][k] = used;
    }
    return hn::Mul(splat(-shares.scale), hn::Div(m, hn::Add(hn::Sqrt(used), splat(shares.eps))));
  }
};

// Parameters and gradients in T, moments in M.
template <class T, class M, bool kMost>
HWY_INLINE bool walk_pair(const MixedElements<float, 4 + kMost, 3 + kMost>& problem, const ElementPart& part,
                          const AdamWProgram<float, kMost>& program) {
  if constexpr (kMost) {
    return walk_types<float, T, M, M, M, T, T, M, M, M>(problem, part, program);
  } else {
    return walk_types<float, T, M, M, T, T, M, M>(problem, part, program);
  }
}

template <class W, bool kMost>
void adam_w_part(const MixedElements<W, 4 + kMost, 3 + kMost>& problem, const ElementPart& part,
                 const AdamWShares<W>& shares) {
  const AdamWProgram<W, kMost> program{shares};
  if constexpr (std::is_same_v<W, float>) {
    if (walk_pair<bfloat16, bfloat16, kMost>(problem, part, program)) return;
    if (walk_pair<bfloat16, float, kMost>(problem, part, program)) return;
    if (walk_pair<float16, float16, kMost>(problem, part, program)) return;
    if (walk_pair<float16, float, kMost>(problem, part, program)) return;
  }
  walk_mixed(problem, part, program);
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace descend::kernels::DESCEND_TARGET {
namespace {

// A number and what it lacks of the exact one.
struct Exact {
  double value, rest;
};

Exact product(const Exact& a, const Exact& b) {
  const double value = a.value * b.value;
  if (!std::isnormal(value)) return {value, 0};
  const double rest = std::fma(a.value, b.value, -value) + (a.value * b.rest + a.rest * b.value);
  return {value + rest, rest - (value + rest - value)};
}

// 1 - base^t, the same on every machine where t is a whole number.
double one_less_power(double base, double t) {
  if (!(t >= 0 && t < 0x1p53 && t == std::floor(t))) return -std::expm1(t * std::log1p(base - 1));
  Exact power{1, 0}, square{base, 0};
  for (auto rest = static_cast<uint64_t>(t); rest != 0; rest /= 2) {
    if (rest % 2 != 0) power = product(power, square);
    square = product(square, square);
  }
  return (1 - power.value) - power.rest;
}

template <class W>
typename AdamWShares<W>::Share share(double drop) {
  using Bits = std::conditional_t<sizeof(W) == 4, uint32_t, uint64_t>;
  const double keep = 1 - drop;
  return {static_cast<W>(keep), static_cast<W>(drop), std::bit_cast<W>(std::abs(keep) < 0.5 ? Bits{0} : ~Bits{0})};
}

template <class W>
AdamWShares<W> shares_of(const AdamWNumbers& n) {
  const FixedFpEnvironment environment;  // the caller may round otherwise
  const auto one_less = [&](double beta, double before) {
    return n.by_powers ? std::fma(-before, beta, 1) : one_less_power(beta, n.t);
  };
  const double root = std::sqrt(one_less(n.beta2, n.beta2_before));
  AdamWShares<W> shares{.m = share<W>(1 - n.beta1),
                        .v = share<W>(1 - n.beta2),
                        .var = share<W>(n.lr * n.weight_decay),
                        .sign = n.maximize ? -W{0} : W{0},
                        .scale = static_cast<W>(n.lr * root / one_less(n.beta1, n.beta1_before)),
                        .eps = static_cast<W>(n.eps * root)};
  shares.m.keep = static_cast<W>(n.beta1);
  shares.v.keep = static_cast<W>(n.beta2);
  if (shares.eps == 0 && n.eps * root > 0) shares.eps = std::numeric_limits<W>::denorm_min();
  return shares;
}

template <class W, bool kMost>
void adam_w_step(const MixedElements<W, 4 + kMost, 3 + kMost>& problem, const AdamWNumbers& numbers) {
  const AdamWShares<W> shares = shares_of<W>(numbers);
  using Problem = MixedElements<W, 4 + kMost, 3 + kMost>;
  run_elements(problem, [&](const Problem& p, const ElementPart& one) { adam_w_part<W, kMost>(p, one, shares); });
}

}  // namespace

template <class T>
void apply_adam_w_v2(const MixedElements<Wide<T>, 4, 3>& problem, const AdamWNumbers& numbers) {
  adam_w_step<Wide<T>, false>(problem, numbers);
}

template <class T>
void apply_adam_w_v2_amsgrad(const MixedElements<Wide<T>, 5, 4>& problem, const AdamWNumbers& numbers) {
  adam_w_step<Wide<T>, true>(problem, numbers);
}

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_KERNEL(void, apply_adam_w_v2, (const MixedElements<Wide<T>, 4, 3>& problem, const AdamWNumbers& numbers),
               problem, numbers)
DESCEND_KERNEL(void, apply_adam_w_v2_amsgrad,
               (const MixedElements<Wide<T>, 5, 4>& problem, const AdamWNumbers& numbers), problem, numbers)
