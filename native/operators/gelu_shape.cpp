#include "operators/gelu_shape.h"

namespace descend {

Status check_gelu_shape(const Call& call, int i, const Dims& expected, const char* rule) {
  const Dims& given = call[i].tensor.shape;
  if (given == expected) return {};
  return call.fail(Code::kParamInvalid, call.name(i), " has shape ", to_string(given), ", but must have ",
                   to_string(expected), ", ", rule, ".");
}

GeluShape::GeluShape(const Dims& shape) : dims(shape), leading(shape.empty() ? 0 : shape.size() - 1) {
  for (uint64_t i = 0; i < shape.size(); ++i) (i < leading ? rows : columns) *= shape[i];
}

StagedRows stage_broadcast(const Call& call, Plan& plan, int i, const GeluShape& shape, kernels::Element wanted) {
  const Tensor& tensor = call[i].tensor;
  if (tensor.shape == shape.dims) return stage_rows(call, plan, i, shape.leading, shape.columns, wanted);
  Call wide = call;
  Tensor& view = wide[i].tensor;
  view.shape = view.strides = shape.dims;
  const uint64_t missing = shape.dims.size() - tensor.rank();
  for (uint64_t k = 0; k < shape.dims.size(); ++k) {
    view.strides[k] = k < missing || tensor.shape[k - missing] == 1 ? 0 : tensor.strides[k - missing];
  }
  return stage_rows(wide, plan, i, shape.leading, shape.columns, wanted);
}

}  // namespace descend
