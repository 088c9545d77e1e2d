#include "operators/row_operator.h"

namespace descend {
namespace {

Status check_numbers(const Call& call, int i, const RowOperands& at, const RowShape& shape) {
  const Dims &given = call[i].tensor.shape, &rows = call[at.x].tensor.shape;
  Dims expected = rows.slice(0, shape.leading);
  const auto refused = [&](const auto&... rule) {
    return call.fail(at.code, call.name(i), " has shape ", to_string(given), ", but must have ", rule...);
  };
  if (call.on_host()) {
    if (call[i].tensor.elements() == shape.rows) return {};
    return refused("as many elements as the first dimensions of ", call.name(at.x), ", ", to_string(expected), ".");
  }
  while (expected.size() < rows.size()) expected.push_back(1);
  if (given == expected) return {};
  return refused("shape ", to_string(expected), ", that of ", call.name(at.x),
                 " with 1 for each normalised dimension.");
}

}  // namespace

Status check_rows_alike(const Call& call, const RowOperands& at) {
  for (const std::vector<int>* rows : {&at.inputs, &at.results}) {
    for (const int i : *rows) {
      if (!call.given(i)) continue;
      const Dims& shape = call[i].tensor.shape;
      if (i != at.repeated) {
        DESCEND_RETURN_IF_ERROR(check_same_shape(call, i, at.x, at.code));
      } else if (const Dims& row = call[at.parameters[0]].tensor.shape;
                 shape != row && shape != call[at.x].tensor.shape) {
        return call.fail(at.code, call.name(i), " has shape ", to_string(shape), ", but must have that of ",
                         call.name(at.parameters[0]), ", ", to_string(row), ", or that of ", call.name(at.x), ", ",
                         to_string(call[at.x].tensor.shape), ".");
      }
    }
  }
  return {};
}

Status check_row_operands(const Call& call, const RowOperands& at, RowShape* shape) {
  const int first = at.parameters[0];
  const Dims &x = call[at.x].tensor.shape, &normalized = call[first].tensor.shape;
  const uint64_t least = call.on_host() || at.may_be_one_row ? 1 : 2;
  if (x.size() < least) {
    return call.fail(at.code, call.name(at.x), " has shape ", to_string(x), ", but must have rank ", least, " to 8.");
  }
  DESCEND_RETURN_IF_ERROR(check_rows_alike(call, at));
  const uint64_t most = x.size() + 1 - least;
  if (normalized.empty() || normalized.size() > most || normalized != x.slice(x.size() - normalized.size(), x.size())) {
    return call.fail(at.code, call.name(first), " has shape ", to_string(normalized), ", but must equal the last 1 to ",
                     most, " dimensions of ", call.name(at.x), ", whose shape is ", to_string(x), ".");
  }
  shape->leading = x.size() - normalized.size();
  shape->rows = product(x.slice(0, shape->leading));
  shape->columns = product(normalized);
  for (const std::vector<int>* columns : {&at.parameters, &at.sums}) {
    for (const int i : *columns) DESCEND_RETURN_IF_ERROR(check_same_shape(call, i, first, at.code));
  }
  for (const std::vector<int>* numbers : {&at.numbers, &at.statistics}) {
    for (const int i : *numbers) {
      if (call.tensor(i) != nullptr && call.op->parameters[i].kind == Kind::kTensor) {
        DESCEND_RETURN_IF_ERROR(check_numbers(call, i, at, *shape));
      }
    }
  }
  return {};
}

Status check_epsilon(const Call& call, int epsilon, Code code) {
  if (call[epsilon].real >= 0) return {};
  return call.fail(code, call.name(epsilon), " is ", call[epsilon].real, ", but must be 0 or greater.");
}

void infer_row_operands(Call& call, const RowOperands& at) {
  const Tensor& x = call[at.x].tensor;
  const Dims& normalized = call[at.parameters[0]].tensor.shape;
  const auto take = [&](const std::vector<int>& list, Dtype dtype, const Dims& shape) {
    for (const int i : list) {
      if (!call.given(i)) call[i].tensor = contiguous_tensor(dtype, shape);
    }
  };
  const Dtype wide = x.dtype == Dtype::kDouble ? Dtype::kDouble : Dtype::kFloat;
  Dims numbers = x.shape;
  const uint64_t k = std::min(normalized.size(), x.rank());
  std::fill(numbers.data() + (x.rank() - k), numbers.data() + x.rank(), 1);
  take(at.results, x.dtype, x.shape);
  take(at.sums, wide, normalized);
  take(at.statistics, wide, numbers);
}

kernels::Element row_element(const Call& call, const RowOperands& at) {
  const kernels::Element element = kernel_element(call, at.x, {});  // unless another tensor of rows has another type
  if (element == kernels::Element::kFloat64) return element;
  for (const std::vector<int>* rows : {&at.inputs, &at.results}) {
    for (const int i : *rows) {
      if (is_touched(call, i) && call[i].tensor.dtype != call[at.x].tensor.dtype) return kernels::Element::kFloat32;
    }
  }
  return element;
}

}  // namespace descend
