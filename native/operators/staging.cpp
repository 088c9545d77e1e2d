#include "operators/staging.h"

#include <algorithm>

namespace descend {
namespace {

using kernels::Element;
using kernels::size_of;

void plan_convert(Plan& plan, const char* name, const kernels::Strided& extent, int64_t elements, Element from_type,
                  Place from, Element to_type, Place to) {
  plan.step(name, 1.0 * elements * (size_of(from_type) + size_of(to_type)), [=](const Addresses& addresses) {
    kernels::convert(extent, from_type, addresses.at<const void>(from), to_type, addresses.at<void>(to));
  });
}

Place copy_in(const Call& call, Plan& plan, int i, Element wanted) {
  const Tensor& tensor = call[i].tensor;
  const int64_t elements = tensor.elements();
  const Place copy = plan.scratch(elements, size_of(wanted));
  const Tensor packed = contiguous_tensor(tensor.dtype, tensor.shape);
  plan_convert(plan, "pack", strided_pair(tensor, packed), elements, element_of(tensor.dtype), Plan::tensor(call, i),
               wanted, copy);
  return copy;
}

// Whether tensor i shares memory with another tensor of the call that has this role.
bool shares(const Call& call, int i, Role role) {
  for (int other = 0; other < static_cast<int>(call.op->parameters.size()); ++other) {
    const Parameter& p = call.op->parameters[other];
    if (other == i || p.kind != Kind::kTensor || p.role != role) continue;
    if (!call.given(other) || !is_used(call, other)) continue;
    if (sharing(call[i].tensor, call[other].tensor) != Sharing::kDisjoint) return true;
  }
  return false;
}

bool is_vector_of(const Tensor& tensor, Element wanted) {
  return element_of(tensor.dtype) == wanted && is_contiguous(tensor);
}

bool is_grid_of(const Tensor& tensor, Element wanted) {
  return element_of(tensor.dtype) == wanted && (tensor.shape.back() == 1 || tensor.strides.back() == 1);
}

// Adds a step: output i (any shape of `columns` elements) = the sum of `slots` rows of partial sums in double.
void plan_sum_slots(const Call& call, Plan& plan, int i, Place partial, int64_t slots, int64_t columns) {
  const Tensor& tensor = call[i].tensor;
  const auto stride = columns == 1 ? std::optional<int64_t>(1) : row_stride(tensor, tensor.rank());
  // If the output's elements are evenly spaced, sums are written to it directly, else to a vector of double first.
  const bool direct = stride.has_value();
  const Element type = direct ? element_of(tensor.dtype) : Element::kFloat64;
  const Place target = direct ? Plan::tensor(call, i) : plan.scratch(columns, sizeof(double));
  const int64_t step = direct ? *stride : 1;
  plan.step("sum slots", 1.0 * slots * columns * sizeof(double), [=](const Addresses& addresses) {
    kernels::sum_slots(slots, columns, addresses.at<const double>(partial), type, addresses.at<void>(target), step);
  });
  if (!direct) {
    plan_convert(plan, "unpack", strided_pair(contiguous_tensor(tensor.dtype, tensor.shape), tensor), columns, type,
                 target, element_of(tensor.dtype), Plan::tensor(call, i));
  }
}

}  // namespace

Element kernel_element(const Call& call, int main, std::initializer_list<int> rows) {
  for (size_t i = 0; i < call.op->parameters.size(); ++i) {
    const Tensor* tensor = call.tensor(static_cast<int>(i));
    if (tensor == nullptr || call.op->parameters[i].kind != Kind::kTensor) continue;
    if (tensor->dtype == Dtype::kDouble && is_used(call, static_cast<int>(i))) return Element::kFloat64;
  }
  const Dtype dtype = call[main].tensor.dtype;
  const bool same = std::all_of(rows.begin(), rows.end(), [&](int i) { return call[i].tensor.dtype == dtype; });
  return same ? element_of(dtype) : Element::kFloat32;
}

StagedRows stage_rows(const Call& call, Plan& plan, int i, uint64_t leading, int64_t columns, Element wanted) {
  const Tensor& tensor = call[i].tensor;
  if (element_of(tensor.dtype) == wanted) {
    if (const auto stride = row_stride(tensor, leading)) return {Plan::tensor(call, i), *stride};
  }
  return {copy_in(call, plan, i, wanted), columns};
}

StagedGrid stage_grid(const Call& call, Plan& plan, int i, Element wanted, bool apart) {
  const Tensor& tensor = call[i].tensor;
  if (is_grid_of(tensor, wanted) && !(apart && shares(call, i, Role::kOutput))) {
    return {Plan::tensor(call, i), tensor.strides};
  }
  return {copy_in(call, plan, i, wanted), contiguous_strides(tensor.shape)};
}

bool is_in_place(const Call& call, int i, Element wanted) {
  return is_vector_of(call[i].tensor, wanted) && !shares(call, i, Role::kOutput);
}

Place stage_vector(const Call& call, Plan& plan, int i, Element wanted) {
  return is_in_place(call, i, wanted) ? Plan::tensor(call, i) : copy_in(call, plan, i, wanted);
}

StagedOutput StagedOutput::rows(const Call& call, Plan& plan, int i, uint64_t leading, int64_t columns,
                                Element written) {
  const Tensor& tensor = call[i].tensor;
  StagedOutput output;
  output.parameter_ = i;
  output.written_ = written;
  if (element_of(tensor.dtype) == written) {
    if (const auto stride = row_stride(tensor, leading)) {
      output.staged_ = {Plan::tensor(call, i), *stride};
      return output;
    }
  }
  output.copied_ = true;
  output.staged_ = {plan.scratch(tensor.elements(), size_of(written)), columns};
  return output;
}

StagedOutput StagedOutput::grid(const Call& call, Plan& plan, int i, Element written) {
  const Tensor& tensor = call[i].tensor;
  StagedOutput output;
  output.parameter_ = i;
  output.written_ = written;
  output.copied_ = !is_grid_of(tensor, written);
  output.staged_.place = output.copied_ ? plan.scratch(tensor.elements(), size_of(written)) : Plan::tensor(call, i);
  return output;
}

Dims StagedOutput::strides(const Call& call) const {
  const Tensor& tensor = call[parameter_].tensor;
  return copied_ ? contiguous_strides(tensor.shape) : tensor.strides;
}

StagedOutput StagedOutput::vector(const Call& call, Plan& plan, int i, Element written) {
  const Tensor& tensor = call[i].tensor;
  StagedOutput output;
  output.parameter_ = i;
  output.written_ = written;
  output.copied_ = !is_vector_of(tensor, written) || shares(call, i, Role::kInput);
  output.staged_ = {output.copied_ ? plan.scratch(tensor.elements(), size_of(written)) : Plan::tensor(call, i), 1};
  return output;
}

void StagedOutput::finish(const Call& call, Plan& plan) const {
  if (!copied_) return;
  const Tensor& tensor = call[parameter_].tensor;
  plan_convert(plan, "unpack", strided_pair(contiguous_tensor(tensor.dtype, tensor.shape), tensor), tensor.elements(),
               written_, place(), element_of(tensor.dtype), Plan::tensor(call, parameter_));
}

StagedSums::StagedSums(const Call& call, Plan& plan, int i, int64_t slots, int64_t columns, Element element)
    : parameter_(i), slots_(slots), columns_(columns) {
  if (slots == 0 && !shares(call, i, Role::kInput)) {
    const Element wide = element == Element::kFloat64 ? element : Element::kFloat32;
    const Tensor& tensor = call[i].tensor;
    place_ = Plan::tensor(call, i);
    own_ = element != wide && is_vector_of(tensor, element);
    if (own_ || is_vector_of(tensor, wide)) return;
  }
  slots_ = std::max<int64_t>(slots, 1);
  place_ = plan.scratch(slots_, columns, sizeof(double));
}

void StagedSums::finish(const Call& call, Plan& plan) const {
  if (parameter_ >= 0 && slots_ > 0) plan_sum_slots(call, plan, parameter_, place_, slots_, columns_);
}

}  // namespace descend
