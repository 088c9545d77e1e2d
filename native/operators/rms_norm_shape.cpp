#include "operators/rms_norm_shape.h"

namespace descend {
namespace {

Dims without_trailing_ones(const Dims& dims) {
  uint64_t rank = dims.size();
  while (rank > 0 && dims[rank - 1] == 1) --rank;
  return dims.slice(0, rank);
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
    return invalid(call.name(rstd), " has shape ", to_string(rstd_shape), ", but must have the dimensions of ",
                   call.name(x), " before those of ", call.name(gamma), ", ", to_string(rows),
                   "; trailing dimensions of 1 do not count.");
  }
  shape->rows = product(rows);
  shape->columns = product(gamma_shape);
  return {};
}

RowOperands rms_norm_operands() {
  using namespace rms_norm_parameters;
  return {
      .x = kX, .inputs = {kX}, .parameters = {kGamma}, .results = {kY}, .statistics = {kRstd}, .scalars = {kEpsilon}};
}

Status check_rms_norm(const Call& call, RowShape* shape) {
  using namespace rms_norm_parameters;
  DESCEND_RETURN_IF_ERROR(check_rms_norm_shape(call, kX, kGamma, kRstd, shape));
  const Dims &x = call[kX].tensor.shape, &rstd = call[kRstd].tensor.shape;
  if (!call.on_host() && rstd.size() != shape->leading && rstd.size() != x.size()) {
    return call.fail(Code::kTilingError, call.name(kRstd), " has shape ", to_string(rstd), ", but must be ",
                     to_string(x.slice(0, shape->leading)), ", or that followed by 1s to the rank of ", call.name(kX),
                     ", ", x.size(), ".");
  }
  DESCEND_RETURN_IF_ERROR(check_same_shape(call, kY, kX, Code::kTilingError));
  return check_epsilon(call, kEpsilon, Code::kTilingError);
}

const std::vector<RmsNormDtypes>& rms_norm_dtypes() {
  static constexpr ProductSet with_bfloat16 = kRmsNormBfloat16, with_inference = kRmsNormHuawei, host(Product::kHost);
  static constexpr DtypeSet f32{Dtype::kFloat}, f16{Dtype::kFloat16}, bf16{Dtype::kBfloat16}, f64{Dtype::kDouble};
  static const std::vector<RmsNormDtypes> rows{
      {with_bfloat16, f16, f32, f32},      {with_bfloat16, bf16, f32, f32},      {with_inference, f16, f32, f16},
      {with_inference, f32, f32, f32},     {with_bfloat16, bf16, f32, bf16},     {host, f32, kAllFloats, kAllFloats},
      {host, f16, kAllFloats, kAllFloats}, {host, bf16, kAllFloats, kAllFloats}, {host, f64, kAllFloats, kAllFloats},
  };
  return rows;
}

}  // namespace descend
