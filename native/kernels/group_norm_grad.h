// Group norm backward, with swish and without.
#pragma once

#include <cstddef>

#include "kernels/groups/problem.h"

namespace descend::kernels {

// How many slots of partial sums the kernels write; a function of the shape alone, at least 1.
inline int64_t group_norm_grad_slots(const GroupShape& shape) {
  return shape.elements() == 0 || split_groups(shape) ? 1 : cut_groups(shape).sample_chunks;
}

// Bytes of scratch that the kernels need, aligned to 64.
template <class T>
size_t group_norm_swish_grad_scratch(const GroupShape& shape);
template <class T>
size_t group_norm_backward_scratch(const GroupShape& shape);

// Without elements they leave sums of 0.
template <class T>
void group_norm_swish_grad(const GroupNormGrad<T, true>& problem, void* scratch);
template <class T>
void group_norm_backward(const GroupNormGrad<T, false>& problem, void* scratch);

}  // namespace descend::kernels
