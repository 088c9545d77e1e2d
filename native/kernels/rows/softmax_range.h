// How large the sum of a softmax's gradient may be in the type of the arithmetic.
#pragma once

#include <limits>

namespace descend::kernels {

// Half the last place of the largest number: a difference with a sum up to it is finite, whatever the other number is.
template <class W>
inline constexpr double kMostSum =
    static_cast<double>(std::numeric_limits<W>::max()) * std::numeric_limits<W>::epsilon() / 4;

}  // namespace descend::kernels
