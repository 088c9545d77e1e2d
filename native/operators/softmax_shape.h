// What the masked softmax and its gradient share: shapes, the mask, products and dtypes.
#pragma once

#include <array>

#include "kernels/rows/mask_rows.h"
#include "operators/operator.h"
#include "operators/plan.h"

namespace descend {

struct SoftmaxShape {
  uint64_t leading;  // dimensions that count the rows
  int64_t rows;
  int64_t columns;
};

inline constexpr ProductSet kSoftmaxProducts(Product::kAtlasA3, Product::kAtlasA2Training, Product::kAtlasA2Inference,
                                             Product::kAscend950, Product::kHost);

// The rows of the dtype table: all `tensors` tensors have one dtype, except tensor number `mask`.
std::vector<DtypeRow> softmax_dtypes(size_t tensors, size_t mask);

// Whether the mask is used: on host it is ignored if fixTriuMask is true.
bool softmax_mask_counts(const Call& call, int fix_triu_mask);

// The numbers of the parameters that both operators have.
struct SoftmaxParameters {
  int main;  // the first input; all tensors but the mask have its shape
  std::array<int, 2> others;
  int mask;
  int fix_triu_mask;
  int64_t least_columns;  // on every product but host
};
Status check_softmax_shape(const Call& call, const SoftmaxParameters& parameters, SoftmaxShape* shape);

// The element type of the kernel: the tensors' own, but double if the scale is 0, infinite or less accurate as a float.
kernels::Element softmax_element(const Call& call, int main, int scale);

// The mask as the kernels take it, without its address, which is known only when the plan runs.
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
