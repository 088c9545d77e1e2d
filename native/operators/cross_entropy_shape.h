// What cross entropy and its gradient share: parameters, dtypes, shapes, attributes.
#pragma once

#include <vector>

#include "kernels/scores/cross_entropy.h"
#include "operators/operator.h"
#include "operators/staging.h"

namespace descend {

inline constexpr ProductSet kCrossEntropyAtlas(Product::kAtlasA3, Product::kAtlasA2Training, Product::kAtlasA2Inference,
                                               Product::kAscend950);
inline constexpr ProductSet kCrossEntropyProducts(Product::kAtlasA3, Product::kAtlasA2Training,
                                                  Product::kAtlasA2Inference, Product::kAscend950, Product::kHost);

// The numbers of the parameters that both operators have.
struct CrossEntropyParameters {
  int scores, target, weight, reduction, ignore_index, label_smoothing, zloss_scale;
};

Parameter reduction_parameter();
Parameter ignore_index_parameter();
Parameter label_smoothing_parameter();
Parameter zloss_scale_parameter();

// Rows for each dtype of `tensors` tensors. Number 1 of the forward's, 2 of the gradient's, is the target, and behind
// it the weight.
std::vector<DtypeRow> cross_entropy_dtypes(size_t tensors, size_t target, DtypeSet targets);

kernels::Reduction reduction_of(const Call& call, int i);

// Checks the shapes of scores, target and weight, reduction and label_smoothing (561002).
Status check_cross_entropy(const Call& call, const CrossEntropyParameters& p);

// Checks that tensor i has the shape of a loss, [N] or, reduced, of one number (rank 0 or 1).
Status check_loss_shape(const Call& call, const CrossEntropyParameters& p, int i, Code code);
Status check_row_numbers(const Call& call, const CrossEntropyParameters& p, int i, Code code);  // [N]

// The element type of the kernel: that of the scores if `result` (-1: there is none) has it, too; else float, or double
// if scores, result or weight are DOUBLE. Numbers of rows are read and made in double.
kernels::Element element_of_scores(const Call& call, const CrossEntropyParameters& p, int result);

// The classes of the rows, as they lie.
struct StagedTargets {
  Place place;
  kernels::Targets targets;

  kernels::Targets at(const Addresses& addresses) const {
    kernels::Targets made = targets;
    made.data = addresses.at<const void>(place);
    return made;
  }
};
StagedTargets stage_targets(const Call& call, const CrossEntropyParameters& p);

// The weights of the classes in the type of the arithmetic; null if they are not given.
template <class W>
struct StagedWeight {
  Place place;
  bool given;

  const W* at(const Addresses& addresses) const { return given ? addresses.at<const W>(place) : nullptr; }
};
template <class W>
StagedWeight<W> stage_weight(const Call& call, Plan& plan, int i) {
  return {call.given(i) ? stage_vector(call, plan, i, kElementOf<W>) : Place{}, call.given(i)};
}

}  // namespace descend
