#include "operators/rms_norm_shape.h"

namespace descend {
namespace {

Dims without_trailing_ones(const Dims& dims) {
  uint64_t rank = dims.size();
  while (rank > 0 && dims[rank - 1] == 1) --rank;
  return dims.slice(0, rank);
}

int64_t product(const Dims& dims) {
  int64_t value = 1;
  for (int64_t dim : dims) value *= dim;
  return value;
}

}  // namespace

Status check_rms_norm_shape(const Call& call, int x, int gamma, int rstd, RowShape* shape) {
  const Dims& x_shape = call[x].tensor.shape;
  const Dims& gamma_shape = call[gamma].tensor.shape;
  const Dims& rstd_shape = call[rstd].tensor.shape;
  const auto invalid = [&](const auto&... parts) { return call.fail(Code::kTilingError, parts...); };

  if (x_shape.empty()) return invalid(call.name(x), " has rank 0, but must have rank 1 to 8.");
  if (gamma_shape.empty() || gamma_shape.size() > x_shape.size() ||
      gamma_shape != x_shape.slice(x_shape.size() - gamma_shape.size(), x_shape.size())) {
    return invalid(call.name(gamma), " has shape ", to_string(gamma_shape), ", but must equal the last dimensions of ",
                   call.name(x), ", whose shape is ", to_string(x_shape), ".");
  }
  shape->leading = x_shape.size() - gamma_shape.size();
  const Dims rows = x_shape.slice(0, shape->leading);
  if (without_trailing_ones(rstd_shape) != without_trailing_ones(rows)) {
    return invalid(call.name(rstd), " has shape ", to_string(rstd_shape), ", but must equal the first ", shape->leading,
                   " dimensions of ", call.name(x), ", ", to_string(rows), ", but for trailing dimensions of 1.");
  }
  shape->rows = product(rows);
  shape->columns = product(gamma_shape);
  return {};
}

const std::vector<RmsNormDtypes>& rms_norm_dtypes() {
  using enum Product;
  static constexpr ProductSet with_bfloat16(kAtlasA3, kAtlasA2Training, kAtlasA2Inference, kAscend950);
  static constexpr ProductSet with_inference = with_bfloat16 | ProductSet(kAtlasInference);
  static constexpr ProductSet host(kHost);
  static constexpr DtypeSet f32{Dtype::kFloat}, f16{Dtype::kFloat16}, bf16{Dtype::kBfloat16}, f64{Dtype::kDouble};
  static const std::vector<RmsNormDtypes> rows{
      {with_bfloat16, f16, f32, f32},      {with_bfloat16, bf16, f32, f32},      {with_inference, f16, f32, f16},
      {with_inference, f32, f32, f32},     {with_bfloat16, bf16, f32, bf16},     {host, f32, kAllFloats, kAllFloats},
      {host, f16, kAllFloats, kAllFloats}, {host, bf16, kAllFloats, kAllFloats}, {host, f64, kAllFloats, kAllFloats},
  };
  return rows;
}

}  // namespace descend
