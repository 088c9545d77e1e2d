#include "operators/layer_norm_shape.h"

#include <algorithm>

namespace descend {
namespace {

constexpr uint64_t kMostNormalized = 8;

template <class... Parts>
Status refused(const Call& call, const Parts&... parts) {
  return call.fail(Code::kParamInvalid, parts...);
}

// The product of non-negative dimensions; -1 if it is too large.
int64_t product(const Dims& dims) {
  if (std::find(dims.begin(), dims.end(), 0) != dims.end()) return 0;
  int64_t value = 1;
  for (int64_t dim : dims) {
    if (__builtin_mul_overflow(value, dim, &value)) return -1;
  }
  return value;
}

Status check_normalized_shape(const Call& call, const LayerNormParameters& at) {
  const Dims& input = call[at.input].tensor.shape;
  const Dims& normalized = call[at.normalized_shape].list;
  if (input.empty()) return refused(call, call.name(at.input), " has rank 0, but must have rank 1 to 8.");
  if (normalized.empty() || normalized.size() > kMostNormalized) {
    return refused(call, call.name(at.normalized_shape), " has ", normalized.size(), " numbers, but must have 1 to ",
                   kMostNormalized, ".");
  }
  if (normalized.size() > input.size() || normalized != input.slice(input.size() - normalized.size(), input.size())) {
    return refused(call, call.name(at.normalized_shape), " is ", to_string(normalized),
                   ", but must equal the last dimensions of ", call.name(at.input), ", whose shape is ",
                   to_string(input), ".");
  }
  return {};
}

}  // namespace

Status check_layer_norm_shape(const Call& call, const LayerNormParameters& at, RowShape* shape) {
  DESCEND_RETURN_IF_ERROR(check_normalized_shape(call, at));
  const Dims& input = call[at.input].tensor.shape;
  const Dims& normalized = call[at.normalized_shape].list;
  shape->leading = input.size() - normalized.size();
  const Dims leading = input.slice(0, shape->leading);
  shape->rows = product(leading);
  shape->columns = product(normalized);
  for (int i : {at.weight, at.bias}) {
    if (!call.given(i) || call[i].tensor.shape == normalized) continue;
    return refused(call, call.name(i), " has shape ", to_string(call[i].tensor.shape), ", but must equal ",
                   call.name(at.normalized_shape), ", ", to_string(normalized), ".");
  }
  for (int i : {at.mean, at.rstd}) {
    if (!call.given(i) || call[i].tensor.elements() == shape->rows) continue;
    return refused(call, call.name(i), " has shape ", to_string(call[i].tensor.shape),
                   ", but must have as many elements as the dimensions of ", call.name(at.input), " before ",
                   call.name(at.normalized_shape), ", ", to_string(leading), ".");
  }
  return {};
}

uint64_t normalized_dimensions(const Call& call, int input, int normalized_shape) {
  return std::min(call[normalized_shape].list.size(), call[input].tensor.rank());
}

const std::vector<LayerNormDtypes>& layer_norm_dtypes() {
  using enum Product;
  static constexpr ProductSet with_bfloat16(kAtlasA3, kAtlasA2Training, kAtlasA2Inference, kAscend950);
  static constexpr ProductSet without_bfloat16(kAtlasInference, kAtlasTraining);
  static constexpr DtypeSet f32{Dtype::kFloat}, f16{Dtype::kFloat16}, bf16{Dtype::kBfloat16}, both = f32 | f16;
  static const std::vector<LayerNormDtypes> rows{
      {with_bfloat16, f32, f32, kDeviceFloats},
      {with_bfloat16, f16, f16, kDeviceFloats},
      {with_bfloat16, f16, f32, kDeviceFloats},
      {with_bfloat16, bf16, bf16, kDeviceFloats},
      {with_bfloat16, bf16, f32, kDeviceFloats},
      {without_bfloat16, f32, f32, both},
      {without_bfloat16, f16, f16, both},
      {without_bfloat16, f16, f32, both},
      {ProductSet(kHost), kAllFloats, kAllFloats, kAllFloats},
  };
  return rows;
}

}  // namespace descend
