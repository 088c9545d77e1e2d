// What rotary position embedding and its gradient share: shapes and layouts, modes, products and dtypes.
#pragma once

#include <array>
#include <vector>

#include "kernels/rotary/rotary.h"
#include "operators/operator.h"
#include "operators/staging.h"

namespace descend {

inline constexpr ProductSet kRotaryProducts(Product::kAtlasA3, Product::kAtlasA2Training, Product::kAtlasA2Inference,
                                            Product::kAscend950, Product::kHost);

inline constexpr const char* kRotaryModes =
    "Where the two members of a pair are: 0 at i and i + D/2 (half), 1 at 2 i and 2 i + 1 (interleave), 2 as 0 in each "
    "half of the row (quarter), 3 as 1 in x and as 0 in all others (interleave-half). On Atlas products 0 and 1.";

inline constexpr const char* kRotaryShape = "[B, S, N, 2 P]";
inline constexpr const char* kRotaryCosShape =
    "[B or 1, S or 1, N or 1, 2 P]; on atlas-a3, atlas-a2-training and atlas-a2-inference as a layout has it";

// The numbers of the parameters that both operators have.
struct RotaryParameters {
  int x;  // or the gradient of what has x's shape
  int cos;
  int sin;
  int mode;
  std::vector<int> like_x;    // tensors of x's shape that may be given
  std::vector<int> like_cos;  // and of cos'
  bool sums;                  // whether the gradients of cos and sin are computed
  bool any_empty;             // whether the page lets tensors without elements have any shapes
};

// All `tensors` tensors have one dtype; on host any.
std::vector<DtypeRow> rotary_dtypes(size_t tensors);

// Checks shapes and the mode (561002).
Status check_rotary(const Call& call, const RotaryParameters& p);

// A row as a kernel sees it: in mode quarter half of one.
struct RotaryRows {
  int64_t columns;
  kernels::Pairing pairing;
};
RotaryRows rotary_rows(const Call& call, const RotaryParameters& p);

// The dimensions before the last, with the strides of some tensors; those of cos' shape are broadcast.
template <class Grid>
Grid rotary_grid(const Call& call, const RotaryParameters& p, const std::vector<Dims>& strides,
                 const std::vector<bool>& is_cos) {
  const Dims &x = call[p.x].tensor.shape, &cos = call[p.cos].tensor.shape;
  Grid grid;
  for (uint64_t d = 0; d + 1 < x.size(); ++d) {
    typename Grid::Strides of{};
    for (size_t t = 0; t < strides.size(); ++t) of[t] = is_cos[t] && cos[d] == 1 ? 0 : strides[t][d];
    grid.add(x[d], of);
  }
  const int64_t columns = rotary_rows(call, p).columns;
  typename Grid::Strides along;
  along.fill(columns);
  grid.add(x.back() / columns, along);
  return grid;
}

}  // namespace descend
