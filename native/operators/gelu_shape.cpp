#include "operators/gelu_shape.h"

#include "kernels/rows/row_grid.h"

namespace descend {

Status check_gelu_shape(const Call& call, int i, const Dims& expected, const char* rule) {
  const Dims& given = call[i].tensor.shape;
  if (given == expected) return {};
  return call.fail(Code::kParamInvalid, call.name(i), " has shape ", to_string(given), ", but must have ",
                   to_string(expected), ", ", rule, ".");
}

namespace {

// An INT32 tensor as rows without gaps of floats or doubles.
StagedRows stage_integers(Plan& plan, Place from, const Tensor& tensor, const GeluShape& shape,
                          kernels::Element wanted) {
  const Place to = plan.scratch(shape.rows * shape.columns, size_of(wanted));
  kernels::RowGrid<1> grid;
  for (uint64_t d = 0; d < shape.dims.size(); ++d) grid.add(shape.dims[d], {tensor.strides[d]});
  const int64_t elements = shape.rows * shape.columns;
  plan.step("convert", 1.0 * elements * (sizeof(int32_t) + size_of(wanted)), [=](const Addresses& addresses) {
    const auto* const integers = addresses.at<const int32_t>(from);
    const auto convert = [&]<class W>(W* numbers) {
      kernels::RowCursor<1> cursor(grid, 0);
      for (int64_t i = 0; i < elements; ++i, cursor.next()) numbers[i] = static_cast<W>(integers[cursor.at()[0]]);
    };
    wanted == kernels::Element::kFloat64 ? convert(addresses.at<double>(to)) : convert(addresses.at<float>(to));
  });
  return {to, shape.columns};
}

}  // namespace

GeluShape::GeluShape(const Dims& shape) : dims(shape), leading(shape.empty() ? 0 : shape.size() - 1) {
  for (uint64_t i = 0; i < shape.size(); ++i) (i < leading ? rows : columns) *= shape[i];
}

StagedRows stage_broadcast(const Call& call, Plan& plan, int i, const GeluShape& shape, kernels::Element wanted) {
  const Tensor& tensor = call[i].tensor;
  const bool is_integer = tensor.dtype == Dtype::kInt32;
  if (tensor.shape == shape.dims && !is_integer) return stage_rows(call, plan, i, shape.leading, shape.columns, wanted);
  Call wide = call;
  Tensor& view = wide[i].tensor;
  view.shape = view.strides = shape.dims;
  const uint64_t missing = shape.dims.size() - tensor.rank();
  for (uint64_t k = 0; k < shape.dims.size(); ++k) {
    const bool is_repeated = k < missing || (tensor.shape[k - missing] == 1 && shape.dims[k] != 1);
    view.strides[k] = is_repeated ? 0 : tensor.strides[k - missing];
  }
  if (is_integer) return stage_integers(plan, Plan::tensor(call, i), view, shape, wanted);
  return stage_rows(wide, plan, i, shape.leading, shape.columns, wanted);
}

}  // namespace descend
