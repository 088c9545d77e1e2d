#include "operators/operator.h"

namespace descend {

extern const Operator group_norm_swish;
extern const Operator group_norm_swish_grad;
extern const Operator layer_norm;
extern const Operator layer_norm_backward;
extern const Operator nsa_compress;
extern const Operator nsa_compress_grad;
extern const Operator rms_norm;
extern const Operator rms_norm_grad;
extern const Operator scaled_masked_softmax;
extern const Operator scaled_masked_softmax_backward;

std::span<const Operator* const> operators() {
  static constexpr const Operator* list[] = {
      &rms_norm_grad,
      &rms_norm,
      &layer_norm_backward,
      &layer_norm,
      &group_norm_swish_grad,
      &group_norm_swish,
      &scaled_masked_softmax_backward,
      &scaled_masked_softmax,
      &nsa_compress_grad,
      &nsa_compress,
  };
  return list;
}

}  // namespace descend
