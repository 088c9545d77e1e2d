#include "operators/registry.h"

namespace descend {

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

const Operator* find_operator(std::string_view name) {
  for (const Operator* op : operators()) {
    if (name == op->name || name == op->c_name) return op;
  }
  return nullptr;
}

}  // namespace descend
