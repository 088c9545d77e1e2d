// NsaCompress and its gradient.
#include "contract.h"
#include "references.h"

namespace fuzz {
namespace {

// Calls use(window, index in weight, index in input, index in the windowed tensor) for every product of the sum.
template <class Use>
void for_windows(const Call& call, const Shape& input, Use use) {
  std::vector<int64_t> starts;
  (void)windows(call, input[0], &starts);
  const int64_t heads = input[1], size = input[2];
  for (size_t c = 0; c < starts.size(); ++c) {
    for (int64_t w = 0; w < call.block; ++w) {
      for (int64_t n = 0; n < heads; ++n) {
        for (int64_t d = 0; d < size; ++d) {
          use(w * heads + n, ((starts[c] + w) * heads + n) * size + d,
              (static_cast<int64_t>(c) * heads + n) * size + d);
        }
      }
    }
  }
}

}  // namespace

std::vector<Numbers> nsa_compress(const Call& call, const std::vector<Numbers>& in) {
  const Shape& out = call.tensors[2].shape;
  Numbers result(count(out, 0, 3));
  for_windows(call, call.tensors[0].shape, [&](int64_t w, int64_t t, int64_t o) { result[o] += in[1][w] * in[0][t]; });
  return {result};
}

std::vector<Numbers> nsa_compress_grad(const Call& call, const std::vector<Numbers>& in) {
  Numbers dinput(in[1].size()), dweight(in[2].size());
  for_windows(call, call.tensors[1].shape, [&](int64_t w, int64_t t, int64_t o) {
    dinput[t] += in[2][w] * in[0][o];
    dweight[w] += in[0][o] * in[1][t];
  });
  return {dinput, dweight};
}

}  // namespace fuzz
