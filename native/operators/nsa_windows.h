// What the contracts of NSA compression and of its gradient share: sequences, windows, and the order of the checks.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/windows.h"
#include "operators/operator.h"

namespace descend {

// Where the parameters stand that both operators have.
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
    // Beyond all tokens one stride is as good as another, and the kernels need not fear that it overflows.
    return {width, std::min(stride, std::max(width, tokens)), kept, static_cast<int64_t>(sequences.size())};
  }
};

inline constexpr ProductSet kNsaProducts(Product::kAtlasA2Training, Product::kHost);

// One dtype for all tensors: 16-bit ones on Atlas products, any on host.
std::vector<DtypeRow> nsa_dtypes(size_t tensors);

// Tensor i, if it could be read, must have this rank (561002): the page looks at ranks before all else.
Status check_nsa_rank(const Call& call, int i, uint64_t rank);

// The only layout.
inline constexpr const char* kNsaLayout = "TND";

// layout and weight (161002), which come before everything that has 561002 but the ranks.
Status check_nsa_layout(const Call& call, const NsaParameters& p);
// The rest: attributes, sequences, and the shape of the compressed tensor (561002).
Status check_nsa_shape(const Call& call, const NsaParameters& p, NsaShape* shape);
Status check_nsa_equal_shapes(const Call& call, int i, int other);
// On Atlas products no tensor may be empty (561002).
Status check_nsa_empty(const Call& call);

// The number of windows, 0 for a call that breaks a rule.
int64_t nsa_blocks(const Call& call, const NsaParameters& p);

}  // namespace descend
