// What the contracts of the masked softmax and of its backward share: shapes, the mask, products and dtypes.
#pragma once

#include <array>

#include "kernels/mask_rows.h"
#include "operators/operator.h"

namespace descend {

struct SoftmaxShape {
  uint64_t leading;  // dimensions that count the rows
  int64_t rows;
  int64_t columns;
};

inline constexpr ProductSet kSoftmaxProducts(Product::kAtlasA3, Product::kAtlasA2Training, Product::kAtlasA2Inference,
                                             Product::kAscend950, Product::kHost);

// The rows of the dtype table: all of `tensors` tensors have one dtype, but for number `mask`.
std::vector<DtypeRow> softmax_dtypes(size_t tensors, size_t mask);

// Whether the mask counts: on host it is ignored where the triangle takes its place.
bool softmax_mask_counts(const Call& call, int fix_triu_mask);

// Where the parameters stand that both operators have.
struct SoftmaxParameters {
  int main;  // the first input, whose shape all tensors but the mask have
  std::array<int, 2> others;
  int mask;
  int fix_triu_mask;
  int64_t least_columns;  // on every product but host
};
Status check_softmax_shape(const Call& call, const SoftmaxParameters& parameters, SoftmaxShape* shape);

// The type that the kernels work in: the tensors' own, but double for a scale that float would make 0 or infinite, or
// keep with fewer digits.
kernels::Element softmax_element(const Call& call, int main, int scale);

// The mask as the kernels take it, but for its address, which is known when the plan runs.
class StagedMask {
 public:
  StagedMask(const Call& call, const SoftmaxParameters& parameters);
  kernels::MaskRows at(const Addresses& addresses) const {
    kernels::MaskRows rows = rows_;
    if (present_) rows.data = addresses.at<const uint8_t>(place_);
    return rows;
  }

 private:
  kernels::MaskRows rows_;
  Place place_;
  bool present_ = false;
};

}  // namespace descend
