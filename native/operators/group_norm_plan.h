// The plans of group norm and of its gradient, with swish and without.
#pragma once

#include "kernels/groups/group_cut.h"
#include "operators/plan.h"

namespace descend {

// The numbers of the parameters, and what follows the norm.
struct GroupNormForward {
  int x, gamma, beta, y, mean, rstd;  // gamma and beta may be null: 1, and 0
  double epsilon;
  bool activate;
  double swish_scale;
};
void plan_group_norm(const Call& call, const GroupNormForward& at, const kernels::GroupShape& shape, Plan& plan);

struct GroupNormGradient {
  int dy, x, mean, rstd, gamma;  // gamma may be null: 1
  int beta;                      // -1: no swish follows the norm
  double swish_scale;
  int dx, dgamma, dbeta;  // those that the call does not compute are not touched
};
void plan_group_norm_gradient(const Call& call, const GroupNormGradient& at, const kernels::GroupShape& shape,
                              Plan& plan);

}  // namespace descend
