// What NSA compression and its gradient share: sequences, windows, and the order of the checks.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/nsa/windows.h"
#include "operators/operator.h"

namespace descend {

// The numbers of the parameters that both operators have.
struct NsaParameters {
  int input, weight, act_seq_len, block_size, stride, act_seq_len_type, layout;
  int compressed;               // the tensor whose rows are the windows: output or outputGrad
  bool width_may_equal_stride;  // on Atlas products
};

struct NsaShape {
  int64_t tokens = 0, heads = 0, depth = 0;
  int64_t width = 0, stride = 0;
  int64_t blocks = 0;  // windows of all sequences
  std::vector<kernels::Sequence> sequences;

  kernels::Windows windows(const kernels::Sequence* kept) const {
    // A stride beyond all tokens is shortened, so that it cannot overflow in the kernels.
    return {width, std::min(stride, std::max(width, tokens)), kept, static_cast<int64_t>(sequences.size())};
  }
};

inline constexpr ProductSet kNsaProducts(Product::kAtlasA2Training, Product::kHost);

// One dtype for all tensors: 16-bit ones on Atlas products, any on host.
std::vector<DtypeRow> nsa_dtypes(size_t tensors);

// Checks the rank of tensor i, if it could be read (561002). The page checks ranks before everything else.
Status check_nsa_rank(const Call& call, int i, uint64_t rank);

// The only layout, and the parameter that says it.
inline constexpr const char* kNsaLayout = "TND";
Parameter nsa_layout();

// Checks layout and weight (161002): after the ranks, and before the other checks with 561002.
Status check_nsa_layout(const Call& call, const NsaParameters& p);
// Checks the attributes, the sequences, and the shape of the compressed tensor (561002).
Status check_nsa_shape(const Call& call, const NsaParameters& p, NsaShape* shape);
// Checks that no tensor is empty, on Atlas products (561002).
Status check_nsa_empty(const Call& call);

// The number of windows; 0 for an invalid call.
int64_t nsa_blocks(const Call& call, const NsaParameters& p);

}  // namespace descend
