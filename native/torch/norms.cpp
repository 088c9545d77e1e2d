#include "torch/norms.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/native/layer_norm.h>
#include <ATen/ops/_fused_rms_norm_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/native_layer_norm_backward_native.h>
#include <ATen/ops/native_layer_norm_native.h>

#include <limits>
#include <new>
#include <utility>

#include "torch/engine_call.h"

namespace descend::pytorch {

using at::Tensor;

namespace {

bool is_given(const OptionalTensor& tensor) { return tensor.has_value() && tensor->defined(); }

bool is_floating(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf || dtype == at::kDouble;
}

// Whether the engine takes a parameter of this dtype: the input's dtype, or float32 if the input has 16 bits.
bool may_have(at::ScalarType parameter, at::ScalarType input) {
  return parameter == input || (parameter == at::kFloat && at::isReducedFloatingType(input));
}

// Whether `normalized_shape` is the shape of the input's last dimensions. The input must have elements, and a rank that
// the engine takes.
bool is_normalized(const Tensor& input, at::IntArrayRef normalized_shape) {
  const auto count = normalized_shape.size();
  const at::IntArrayRef sizes = input.sizes();
  return count > 0 && count <= sizes.size() && sizes.size() <= descend::Tensor::kMaxRank && input.numel() > 0 &&
         sizes.slice(sizes.size() - count).equals(normalized_shape);
}

// The input's sizes, with 1 for each normalized dimension.
at::DimVector statistics_sizes(const Tensor& input, at::IntArrayRef normalized_shape) {
  at::DimVector sizes(input.sizes().begin(), input.sizes().end());
  std::fill(sizes.end() - static_cast<std::ptrdiff_t>(normalized_shape.size()), sizes.end(), 1);
  return sizes;
}

// The number 1 in a dtype. The engine always needs a weight for RMS norm; this one stands for a weight that is not
// given.
const void* one(at::ScalarType dtype) {
  static const float single = 1;
  static const double wide = 1;
  static const c10::Half half = 1;
  static const c10::BFloat16 brain = 1;
  switch (dtype) {
    case at::kDouble:
      return &wide;
    case at::kHalf:
      return &half;
    case at::kBFloat16:
      return &brain;
    default:
      return &single;
  }
}

using Two = std::tuple<Tensor, Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

// Calls the engine. fill(call) gives it the arguments and memory for the results, and returns the results. Empty if
// fill() returns nothing, if the engine refuses the call, or if there is no memory.
template <class Fill>
auto run_operator(const Operator& op, Fill fill) -> decltype(fill(std::declval<EngineCall&>())) {
  try {
    EngineCall call(op);
    auto results = fill(call);
    if (!results || !call.prepare() || !call.run()) return std::nullopt;
    return results;
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
}

// Gives the weight of RMS norm, or ones if there is none. False if the engine does not take it.
bool give_rms_norm_weight(EngineCall& call, int parameter, const OptionalTensor& weight, const Tensor& input,
                          at::IntArrayRef normalized_shape) {
  if (is_given(weight)) return call.give(parameter, *weight);
  call.give_constant(parameter, input.scalar_type(), normalized_shape, one(input.scalar_type()));
  return true;
}

// Each of these is empty if the engine does not compute the call.

std::optional<Three> run_layer_norm(const Tensor& input, at::IntArrayRef normalized_shape, const OptionalTensor& weight,
                                    const OptionalTensor& bias, double eps) {
  static const Operator& op = find_operator("layer_norm");
  static const struct {
    int input = find_parameter(op, "input"), normalized_shape = find_parameter(op, "normalized_shape"),
        weight = find_parameter(op, "weight"), bias = find_parameter(op, "bias"), eps = find_parameter(op, "eps"),
        out = find_parameter(op, "out"), mean = find_parameter(op, "mean_out"), rstd = find_parameter(op, "rstd_out");
  } index;
  const at::ScalarType dtype = input.scalar_type();
  if (!is_floating(dtype) || !is_normalized(input, normalized_shape)) return std::nullopt;
  at::ScalarType parameters = at::ScalarType::Undefined;
  for (const OptionalTensor* given : {&weight, &bias}) {
    if (!is_given(*given)) continue;
    if (parameters != at::ScalarType::Undefined && (*given)->scalar_type() != parameters) return std::nullopt;
    parameters = (*given)->scalar_type();
    if (!may_have(parameters, dtype) || !(*given)->sizes().equals(normalized_shape)) return std::nullopt;
  }
  const at::ScalarType statistics = parameters == at::ScalarType::Undefined ? dtype : parameters;
  return run_operator(op, [&](EngineCall& call) -> std::optional<Three> {
    if (!call.give(index.input, input) || (is_given(weight) && !call.give(index.weight, *weight)) ||
        (is_given(bias) && !call.give(index.bias, *bias))) {
      return std::nullopt;
    }
    call.give(index.normalized_shape, normalized_shape);
    call.give(index.eps, eps);
    const at::DimVector sizes = statistics_sizes(input, normalized_shape);
    Three results{allocate(input.sizes(), dtype), allocate(sizes, statistics), allocate(sizes, statistics)};
    call.give(index.out, std::get<0>(results));
    call.give(index.mean, std::get<1>(results));
    call.give(index.rstd, std::get<2>(results));
    return results;
  });
}

std::optional<Three> run_layer_norm_backward(const Tensor& grad_out, const Tensor& input,
                                             at::IntArrayRef normalized_shape, const Tensor& mean, const Tensor& rstd,
                                             const OptionalTensor& weight, const OptionalTensor& bias,
                                             std::array<bool, 3> output_mask) {
  static const Operator& op = find_operator("layer_norm_backward");
  static const struct {
    int grad_out = find_parameter(op, "grad_out"), input = find_parameter(op, "input"),
        normalized_shape = find_parameter(op, "normalized_shape"), mean = find_parameter(op, "mean"),
        rstd = find_parameter(op, "rstd"), weight = find_parameter(op, "weight"), bias = find_parameter(op, "bias"),
        output_mask = find_parameter(op, "output_mask");
    std::array<int, 3> results{find_parameter(op, "grad_input_out"), find_parameter(op, "grad_weight_out"),
                               find_parameter(op, "grad_bias_out")};
  } index;
  const at::ScalarType dtype = input.scalar_type();
  if (!is_floating(dtype) || grad_out.scalar_type() != dtype || !is_normalized(input, normalized_shape) ||
      !grad_out.sizes().equals(input.sizes()) || !may_have(mean.scalar_type(), dtype) ||
      rstd.scalar_type() != mean.scalar_type()) {
    return std::nullopt;
  }
  const std::array<const OptionalTensor*, 2> parameters{&weight, &bias};
  for (size_t k = 0; k < parameters.size(); ++k) {
    const OptionalTensor& given = *parameters[k];
    if (!is_given(given)) {
      if (output_mask[k + 1]) return std::nullopt;
      continue;
    }
    if (!may_have(given->scalar_type(), dtype) || !given->sizes().equals(normalized_shape)) return std::nullopt;
  }
  return run_operator(op, [&](EngineCall& call) -> std::optional<Three> {
    if (!call.give(index.grad_out, grad_out) || !call.give(index.input, input) || !call.give(index.mean, mean) ||
        !call.give(index.rstd, rstd) || (is_given(weight) && !call.give(index.weight, *weight))) {
      return std::nullopt;
    }
    call.give(index.normalized_shape, normalized_shape);
    const std::array<int64_t, 3> mask{output_mask[0], output_mask[1], output_mask[2]};
    call.give(index.output_mask, mask);
    std::array<Tensor, 3> results;
    for (size_t k = 0; k < results.size(); ++k) {
      if (!output_mask[k]) continue;
      results[k] =
          k == 0 ? allocate(input.sizes(), dtype) : allocate(normalized_shape, (*parameters[k - 1])->scalar_type());
      call.give(index.results[k], results[k]);
    }
    return Three{std::move(results[0]), std::move(results[1]), std::move(results[2])};
  });
}

std::optional<Two> run_rms_norm(const Tensor& input, at::IntArrayRef normalized_shape, const OptionalTensor& weight,
                                std::optional<double> eps) {
  static const Operator& op = find_operator("rms_norm");
  static const struct {
    int x = find_parameter(op, "x"), gamma = find_parameter(op, "gamma"), epsilon = find_parameter(op, "epsilon"),
        y = find_parameter(op, "y_out"), rstd = find_parameter(op, "rstd_out");
  } index;
  if (!serves_rms_norm(input, normalized_shape, weight)) return std::nullopt;
  const at::ScalarType dtype = input.scalar_type();
  const at::ScalarType wide = at::toOpMathType(dtype);
  return run_operator(op, [&](EngineCall& call) -> std::optional<Two> {
    if (!call.give(index.x, input) || !give_rms_norm_weight(call, index.gamma, weight, input, normalized_shape)) {
      return std::nullopt;
    }
    constexpr double kSingle = std::numeric_limits<float>::epsilon(), kDouble = std::numeric_limits<double>::epsilon();
    call.give(index.epsilon, eps.value_or(wide == at::kDouble ? kDouble : kSingle));
    Two results{allocate(input.sizes(), dtype), allocate(statistics_sizes(input, normalized_shape), wide)};
    call.give(index.y, std::get<0>(results));
    call.give(index.rstd, std::get<1>(results));
    return results;
  });
}

std::optional<Two> run_rms_norm_backward(const Tensor& grad_out, const Tensor& input, at::IntArrayRef normalized_shape,
                                         const Tensor& rstd, const OptionalTensor& weight,
                                         std::array<bool, 2> output_mask) {
  static const Operator& op = find_operator("rms_norm_grad");
  static const struct {
    int dy = find_parameter(op, "dy"), x = find_parameter(op, "x"), rstd = find_parameter(op, "rstd"),
        gamma = find_parameter(op, "gamma"), dx = find_parameter(op, "dx_out"),
        dgamma = find_parameter(op, "dgamma_out");
  } index;
  const at::ScalarType dtype = input.scalar_type();
  if (!serves_rms_norm(input, normalized_shape, weight) || grad_out.scalar_type() != dtype ||
      !grad_out.sizes().equals(input.sizes()) || !may_have(rstd.scalar_type(), dtype) ||
      (output_mask[1] && !is_given(weight))) {
    return std::nullopt;
  }
  auto gradients = run_operator(op, [&](EngineCall& call) -> std::optional<Two> {
    if (!call.give(index.dy, grad_out) || !call.give(index.x, input) || !call.give(index.rstd, rstd) ||
        !give_rms_norm_weight(call, index.gamma, weight, input, normalized_shape)) {
      return std::nullopt;
    }
    const at::ScalarType parameter = is_given(weight) ? weight->scalar_type() : dtype;
    Two results{allocate(input.sizes(), dtype), allocate(normalized_shape, parameter)};
    call.give(index.dx, std::get<0>(results));
    call.give(index.dgamma, std::get<1>(results));
    return results;
  });
  if (gradients) {  // the engine always computes both
    if (!output_mask[0]) std::get<0>(*gradients).reset();
    if (!output_mask[1]) std::get<1>(*gradients).reset();
  }
  return gradients;
}

}  // namespace

Three native_layer_norm(const Tensor& input, c10::SymIntArrayRef normalized_shape, const OptionalTensor& weight,
                        const OptionalTensor& bias, double eps) {
  const at::IntArrayRef shape = C10_AS_INTARRAYREF_SLOW(normalized_shape);
  if (auto results = run_layer_norm(input, shape, weight, bias, eps)) return std::move(*results);
  return at::native::layer_norm_cpu(input, shape, weight, bias, eps);
}

Three native_layer_norm_backward(const Tensor& grad_out, const Tensor& input, c10::SymIntArrayRef normalized_shape,
                                 const Tensor& mean, const Tensor& rstd, const OptionalTensor& weight,
                                 const OptionalTensor& bias, std::array<bool, 3> output_mask) {
  const at::IntArrayRef shape = C10_AS_INTARRAYREF_SLOW(normalized_shape);
  auto results = run_layer_norm_backward(grad_out, input, shape, mean, rstd, weight, bias, output_mask);
  if (results) return std::move(*results);
  return at::native::layer_norm_backward_cpu(grad_out, input, shape, mean, rstd, weight, bias, output_mask);
}

// The same rule as in native/bindings/stable_norms.cpp and descend.torch.stable.
bool serves_rms_norm(const Tensor& input, at::IntArrayRef normalized_shape, const OptionalTensor& weight) {
  const at::ScalarType dtype = input.scalar_type();
  return is_floating(dtype) && is_normalized(input, normalized_shape) &&
         // For channels-last input PyTorch's result is channels-last, too; the engine's is not.
         input.suggest_memory_format() == at::MemoryFormat::Contiguous &&
         (!is_given(weight) || (may_have(weight->scalar_type(), dtype) && weight->sizes().equals(normalized_shape)));
}

Two fused_rms_norm(const Tensor& input, at::IntArrayRef normalized_shape, const OptionalTensor& weight,
                   std::optional<double> eps) {
  if (auto results = run_rms_norm(input, normalized_shape, weight, eps)) return std::move(*results);
  return at::compositeimplicitautograd::_fused_rms_norm(input, normalized_shape, weight, eps);
}

Two fused_rms_norm_backward(const Tensor& grad_out, const Tensor& input, at::IntArrayRef normalized_shape,
                            const Tensor& rstd, const OptionalTensor& weight, std::array<bool, 2> output_mask) {
  auto results = run_rms_norm_backward(grad_out, input, normalized_shape, rstd, weight, output_mask);
  if (results) return std::move(*results);
  return composed_rms_norm_backward(grad_out, input, normalized_shape, rstd, weight, output_mask);
}

// The same steps as in descend.torch.stable.
Two composed_rms_norm_backward(const Tensor& grad_out, const Tensor& input, at::IntArrayRef normalized_shape,
                               const Tensor& rstd, const OptionalTensor& weight, std::array<bool, 2> output_mask) {
  const at::ScalarType wide = at::toOpMathType(input.scalar_type());
  const int64_t rank = input.dim(), split = rank - static_cast<int64_t>(normalized_shape.size());
  at::DimVector rows, row;
  for (int64_t i = 0; i < rank; ++i) (i < split ? rows : row).push_back(i);
  const Tensor dy = grad_out.to(wide), r = rstd.to(wide), xhat = input.to(wide) * r;
  const Tensor g = is_given(weight) ? dy * weight->to(wide) : dy;
  Two results;
  if (output_mask[0]) {
    std::get<0>(results) = (r * (g - xhat * (g * xhat).mean(row, true))).to(input.scalar_type());
  }
  if (output_mask[1] && is_given(weight)) {
    const Tensor product = dy * xhat;
    std::get<1>(results) = (rows.empty() ? product : product.sum(rows)).to(weight->scalar_type());
  }
  return results;
}

}  // namespace descend::pytorch
