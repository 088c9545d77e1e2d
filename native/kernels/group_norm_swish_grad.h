// Group norm + swish backward.
#pragma once

#include <cstddef>

#include "kernels/groups/problem.h"

namespace descend::kernels {

// How many slots of partial sums the kernel writes; a function of the shape and type alone, at least 1.
template <class T>
int64_t group_norm_swish_grad_slots(const GroupShape& shape);

// Bytes of scratch that the kernel needs, aligned to 64.
template <class T>
size_t group_norm_swish_grad_scratch(const GroupShape& shape);

// Without elements it leaves sums of 0.
template <class T>
void group_norm_swish_grad(const GroupNormSwishGrad<T>& problem, void* scratch);

}  // namespace descend::kernels
