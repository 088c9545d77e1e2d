// Variances, which older layer norm types of CANN have in place of rstd.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/tensor.h"

namespace descend {

// The biased variance of each row of a contiguous matrix, in double; NaN where a row has no elements.
std::vector<double> row_variances(Dtype dtype, const void* x, int64_t rows, int64_t columns);

// to[i] = 1 / sqrt(variance[i] + epsilon), computed in double and rounded once.
void reciprocal_deviations(int64_t count, Dtype dtype, const void* variance, double epsilon, Dtype to_dtype, void* to);

}  // namespace descend
