// A step of AdamW on elements: var, m, v, [the largest v,] grad in; var, m, v[, the largest v] out.
#pragma once

#include "kernels/elements/elements.h"

namespace descend::kernels {

struct AdamWNumbers {
  double lr, beta1, beta2, weight_decay, eps;
  bool maximize;
  double t = 0;                               // the number of this step, the first being 1
  bool by_powers = false;                     // whether the powers of the betas are given in the place of t:
  double beta1_before = 0, beta2_before = 0;  // those of the step before
};

// What a step makes of them. keep = 1 - drop; `mostly` has all bits set where keep is the larger.
template <class W>
struct AdamWShares {
  struct Share {
    W keep, drop, mostly;
  };
  Share m, v, var;
  W sign;   // -0 to maximize: what the sign of the gradient is changed by
  W scale;  // lr sqrt(1 - beta2^t) / (1 - beta1^t)
  W eps;    // eps sqrt(1 - beta2^t)
};

template <class T>
void apply_adam_w_v2(const MixedElements<Wide<T>, 4, 3>& problem, const AdamWNumbers& numbers);
// With the largest v.
template <class T>
void apply_adam_w_v2_amsgrad(const MixedElements<Wide<T>, 5, 4>& problem, const AdamWNumbers& numbers);

}  // namespace descend::kernels
