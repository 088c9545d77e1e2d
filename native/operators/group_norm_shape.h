// What group norm + swish and its gradient share: the checks of the parameters against x, and the products.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/group_cut.h"
#include "operators/operator.h"

namespace descend {

// The numbers of the parameters that both operators have.
struct GroupNormParameters {
  int x, gamma, beta, groups, mean, rstd;
};

// Checks x's rank, num_groups, and the shapes of gamma, beta, mean and rstd (561002). If x has no elements, inner is 0.
Status check_group_norm_shape(const Call& call, const GroupNormParameters& at, kernels::GroupShape* shape);

// Small samples are folded: `times` neighbouring samples are computed as one, with `times` as many channels and groups,
// and with gamma and beta repeated, so that there are at least `enough` elements at a time. Partial sums of channels
// then have `times` as many slots. Folded samples must be contiguous; if they are not, they are copied. So the order of
// sums depends on the shape alone.
struct FoldedSamples {
  int64_t times = 1;
  kernels::GroupShape main;
  kernels::GroupShape rest;  // the samples that are left over

  int64_t main_samples() const { return main.samples * times; }
  uint64_t leading() const { return times > 1 ? 0 : 1; }  // leading dimensions of x that may have gaps
};
FoldedSamples fold_samples(const kernels::GroupShape& shape, int64_t enough);

// Repeats gamma and beta into `room`.
template <class W>
void repeat_parameters(const FoldedSamples& folded, W* room, const W*& gamma, const W*& beta) {
  const int64_t channels = folded.rest.channels;
  for (const W** parameter : {&gamma, &beta}) {
    const W* from = std::exchange(*parameter, room);
    for (int64_t i = 0; i < folded.times; ++i, room += channels) std::copy_n(from, channels, room);
  }
}

// swishScale in the type of the arithmetic. A finite number stays finite, so that 0 times it is 0.
template <class W>
W swish_scale(double scale) {
  constexpr double kLargest = std::numeric_limits<W>::max();
  const bool finite = std::abs(scale) <= std::numeric_limits<double>::max();
  return static_cast<W>(finite ? std::clamp(scale, -kLargest, kLargest) : scale);
}

inline constexpr ProductSet kGroupNormProducts(Product::kAtlasA3, Product::kAtlasA2Training, Product::kAtlasA2Inference,
                                               Product::kAscend950);
inline constexpr ProductSet kGroupNormProductsAndHost = kGroupNormProducts | ProductSet(Product::kHost);

}  // namespace descend
