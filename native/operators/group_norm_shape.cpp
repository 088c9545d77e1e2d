#include "operators/group_norm_shape.h"

#include <algorithm>

namespace descend {

bool multiply_to(const Dims& numbers, int64_t product) {
  if (std::any_of(numbers.begin(), numbers.end(), [](int64_t number) { return number < 0; })) return false;
  if (std::count(numbers.begin(), numbers.end(), 0) > 0) return product == 0;
  for (const int64_t number : numbers) {
    if (product % number != 0) return false;
    product /= number;
  }
  return product == 1;
}

Status check_groups(const Call& call, const GroupNormParameters& at, int64_t samples, int64_t channels,
                    kernels::GroupShape* shape) {
  const auto invalid = [&](const auto&... parts) { return call.fail(at.code, parts...); };
  const Tensor& x = call[at.x].tensor;
  const int64_t groups = call[at.groups].integer;
  if (groups <= 0) return invalid(call.name(at.groups), " is ", groups, ", but must be positive.");
  if (channels % groups != 0) {
    return invalid(call.name(at.groups), " is ", groups, ", but must divide the ", channels, " channels of ",
                   call.name(at.x), ", whose shape is ", to_string(x.shape), ".");
  }
  for (int i : {at.gamma, at.beta}) {
    if (i < 0 || !call.given(i)) continue;
    const Tensor& got = call[i].tensor;
    if (at.any_shape ? got.elements() == channels : got.shape == Dims{channels}) continue;
    return invalid(call.name(i), " has shape ", to_string(got.shape), ", but must have shape [", channels,
                   "], one element for each channel of ", call.name(at.x), ", whose shape is ", to_string(x.shape),
                   ".");
  }
  for (int i : {at.mean, at.rstd}) {
    const Tensor& got = call[i].tensor;
    if (multiply_to(Dims{samples, groups}, got.elements())) continue;
    return invalid(call.name(i), " has shape ", to_string(got.shape), ", but must have one element for each of ",
                   groups, " groups of each of ", samples, " samples.");
  }
  const int64_t elements = x.elements();
  *shape = {samples, channels, groups, elements == 0 ? 0 : elements / samples / channels};
  return {};
}

Status check_group_norm_shape(const Call& call, const GroupNormParameters& at, kernels::GroupShape* shape) {
  const Dims& x = call[at.x].tensor.shape;
  if (x.size() < 2) {
    return call.fail(at.code, call.name(at.x), " has shape ", to_string(x), ", but must have rank 2 to 8.");
  }
  return check_groups(call, at, x[0], x[1], shape);
}

Status check_statistics_shape(const Call& call, int mean, int rstd, const kernels::GroupShape& shape) {
  const Dims expected{shape.samples, shape.groups};
  for (const int i : {mean, rstd}) {
    const Dims& got = call[i].tensor.shape;
    if (got == expected) continue;
    return call.fail(Code::kParamInvalid, call.name(i), " has shape ", to_string(got), ", but must have ",
                     to_string(expected), " on ", info(call.product).name, ".");
  }
  return {};
}

Status check_group_norm_epsilon(const Call& call, int epsilon) {
  const double value = call[epsilon].real;
  if (value > 0 || (call.on_host() && value == 0)) return {};
  return call.fail(Code::kParamInvalid, call.name(epsilon), " is ", value, ", but must be ",
                   call.on_host() ? "0 or greater." : "greater than 0.");
}

void infer_group_norm(Call& call, int x, int groups, int y, int mean, int rstd) {
  const Tensor& of = call[x].tensor;
  if (!call.given(y)) call[y].tensor = contiguous_tensor(of.dtype, of.shape);
  const Dtype wide = of.dtype == Dtype::kDouble ? Dtype::kDouble : Dtype::kFloat;
  const int64_t samples = of.rank() > 0 ? of.shape[0] : 0, of_sample = std::max<int64_t>(call[groups].integer, 0);
  for (int i : {mean, rstd}) {
    if (!call.given(i)) call[i].tensor = contiguous_tensor(wide, {samples, of_sample});
  }
}

}  // namespace descend
