// What group norm + swish and its gradient share: how the parameters fit x, and the products.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/group_cut.h"
#include "operators/operator.h"

namespace descend {

// Where an operator has the parameters that both have.
struct GroupNormParameters {
  int x, gamma, beta, groups, mean, rstd;
};

// x's rank, num_groups, and the shapes of gamma, beta, mean and rstd (561002). Without elements, inner is 0.
Status check_group_norm_shape(const Call& call, const GroupNormParameters& at, kernels::GroupShape* shape);

// Output or input i has the shape of x, or of gamma (561002).
Status check_same_shape(const Call& call, int i, int other);

// Small samples are worked on together: `times` neighbours as if they were one, with so many times the channels and the
// groups, for which gamma and beta are repeated, until there are `enough` elements to work on at a time. Sums of
// channels in slots are then as many times the slots. Such samples lie one behind the other, if need be by way of a
// copy: the order of sums is a matter of the shape.
struct FoldedSamples {
  int64_t times = 1;
  kernels::GroupShape main;
  kernels::GroupShape rest;  // the samples that are left over

  int64_t main_samples() const { return main.samples * times; }
  uint64_t leading() const { return times > 1 ? 0 : 1; }  // dimensions of x that need not lie without gaps
};
FoldedSamples fold_samples(const kernels::GroupShape& shape, int64_t enough);

// Repeats gamma and beta, which then are in `room`.
template <class W>
void repeat_parameters(const FoldedSamples& folded, W* room, const W*& gamma, const W*& beta) {
  const int64_t channels = folded.rest.channels;
  for (const W** parameter : {&gamma, &beta}) {
    const W* from = std::exchange(*parameter, room);
    for (int64_t i = 0; i < folded.times; ++i, room += channels) std::copy_n(from, channels, room);
  }
}

// swishScale in the type of the arithmetic: finite where it was, so that it times 0 is 0.
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
