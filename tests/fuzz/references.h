// The float64 references of the operators, each written from its page, and what they share.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "contract.h"
#include "reference.h"

namespace fuzz {

// From a call and its inputs to its outputs, as reference() has them.
using Reference = std::vector<Numbers>(const Call& call, const std::vector<Numbers>& in);

// Norms.
Reference rms_norm, rms_norm_grad, gemma_rms_norm, add_rms_norm, add_rms_norm_in_place;
Reference layer_norm, layer_norm_backward, add_layer_norm, add_layer_norm_grad, deep_norm, deep_norm_grad;
Reference group_norm_swish, group_norm_swish_grad, group_norm, group_norm_silu, group_norm_backward;
// Softmaxes and losses.
Reference masked_softmax, softmax, softmax_backward, log_softmax, log_softmax_backward;
Reference cross_entropy_loss, cross_entropy_loss_grad;
// Compression of tokens.
Reference nsa_compress, nsa_compress_grad;
// Of elements: activations, rotary position embedding, AdamW.
Reference gelu, gelu_v2, gelu_backward, gelu_backward_v2, swi_glu, swi_glu_grad;
Reference rotary_position_embedding, rotary_position_embedding_grad;
Reference apply_adam_w, apply_adam_w_v2;

// A result that is not compared: float32 has too few digits for it.
inline constexpr double kNotCompared = HUGE_VAL;

// a + b, or kNotCompared if most of their digits cancel.
inline double sum_of(double a, double b) {
  return std::abs(a + b) < 0.01 * (std::abs(a) + std::abs(b)) ? kNotCompared : a + b;
}

inline double sigmoid(double z) { return 1 / (1 + std::exp(-z)); }

// The number of elements of the dimensions from `begin` to before `end`.
inline int64_t count(const Shape& shape, size_t begin, size_t end) {
  int64_t value = 1;
  for (size_t i = begin; i < end; ++i) value *= shape[i];
  return value;
}
inline int64_t count(const Shape& shape) { return count(shape, 0, shape.size()); }

// As many zeros. Beside a dimension of 0 others may be of any size; then nobody asks for what would have them.
inline Numbers zeros(int64_t size) { return Numbers(static_cast<size_t>(std::clamp<int64_t>(size, 0, kMany))); }

// Calls use(index of the row, index of the column, index of the element).
template <class Use>
void for_matrix(int64_t rows, int64_t columns, Use use) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) use(r, c, r * columns + c);
  }
}

// The vectors of a tensor along one of its dimensions, which may be counted from the last. A number is a vector of one.
struct Vectors {
  int64_t before = 1, length = 1, after = 1;
  Vectors(int64_t rows, int64_t columns) : before(rows), length(columns) {}
  Vectors(const Shape& shape, int64_t dim) {
    if (shape.empty()) return;
    const size_t axis = dim < 0 ? shape.size() + dim : dim;
    before = count(shape, 0, axis), length = shape[axis], after = count(shape, axis + 1, shape.size());
  }
  int64_t vectors() const { return length == 0 ? 0 : before * after; }
  // Calls use(index of the vector, index in the vector, index of the element).
  template <class Use>
  void for_each(Use use) const {
    for (int64_t v = 0; v < vectors(); ++v) {
      for (int64_t k = 0; k < length; ++k) use(v, k, (v / after * length + k) * after + v % after);
    }
  }
};

// The element of a tensor of shape `small` that stands at element i of the shape to which it is broadcast.
int64_t broadcast_element(const Shape& small, const Shape& shape, int64_t i);

}  // namespace fuzz
