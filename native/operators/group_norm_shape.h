// What group norm, with swish and without, and the gradients share: the checks of the parameters against x, the
// products.
#pragma once

#include "kernels/groups/group_cut.h"
#include "operators/operator.h"

namespace descend {

// The numbers of the parameters, and the status where they do not fit.
struct GroupNormParameters {
  int x, gamma, beta, groups, mean, rstd;  // beta may be -1; gamma and beta may be null
  Code code = Code::kTilingError;
  bool any_shape = false;  // whether gamma and beta may have any shape of C elements
};

// Checks num_groups, and the shapes of gamma, beta, mean and rstd, of an x that has this shape [N, C, ...]. If x has no
// elements, inner is 0.
Status check_groups(const Call& call, const GroupNormParameters& at, int64_t samples, int64_t channels,
                    kernels::GroupShape* shape);

// The same, and that x has rank 2 to 8: its first dimensions are N and C.
Status check_group_norm_shape(const Call& call, const GroupNormParameters& at, kernels::GroupShape* shape);

// On a page that gives mean and rstd a shape: checks that it is [N, num_groups].
Status check_statistics_shape(const Call& call, int mean, int rstd, const kernels::GroupShape& shape);

// On a page that asks for an epsilon above 0: checks it; host takes 0, too.
Status check_group_norm_epsilon(const Call& call, int epsilon);

// Whether numbers multiply to `product`; negative ones do not. Correct even if their product overflows.
bool multiply_to(const Dims& numbers, int64_t product);

// Results that are not given: y as x; mean and rstd FLOAT [N, num_groups], DOUBLE where x is.
void infer_group_norm(Call& call, int x, int groups, int y, int mean, int rstd);

inline constexpr ProductSet kGroupNormProducts(Product::kAtlasA3, Product::kAtlasA2Training, Product::kAtlasA2Inference,
                                               Product::kAscend950);
inline constexpr ProductSet kGroupNormProductsAndHost = kGroupNormProducts | ProductSet(Product::kHost);

}  // namespace descend
