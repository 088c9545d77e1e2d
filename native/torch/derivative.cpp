#include "torch/derivative.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace descend::pytorch {

using at::Tensor;
using c10::IValue;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

constexpr size_t kTensors = 4;

// What the backward function needs of the forward pass.
struct Saved {
  std::array<Tensor, kTensors> tensors;  // the forward's tensor arguments; undefined if not given
  variable_list results;                 // the forward's results that Derivative::saved lists
  std::vector<IValue> attributes;        // the forward's other arguments, in order
  std::array<bool, kTensors> needs;      // whether each tensor's gradient is needed
  Tensor of_sum;                         // what came in for the result that is the sum; undefined: nothing
};

using Arguments = std::vector<IValue>;

Arguments rms_norm_arguments(const Tensor& dy, const Saved& s) {
  return {dy, s.tensors[0], s.results[0], s.tensors[1]};
}

Arguments add_rms_norm_arguments(const Tensor& dy, const Saved& s) {
  return {dy, s.results[0], s.results[1], s.tensors[2]};
}

Arguments add_layer_norm_arguments(const Tensor& dy, const Saved& s) {
  const IValue of_sum = s.of_sum.defined() ? IValue(s.of_sum) : IValue();
  return {dy, s.results[0], IValue(), s.results[2], s.results[1], s.tensors[2], of_sum};
}

Arguments deep_norm_arguments(const Tensor& dy, const Saved& s) {
  return {dy, s.tensors[0], s.tensors[1], s.tensors[3], s.results[0], s.results[1], s.attributes[0]};
}

Arguments gemma_rms_norm_arguments(const Tensor& dy, const Saved& s) {
  const Tensor& gamma = s.tensors[1];
  return {dy, s.tensors[0], s.results[0], gamma.to(gamma.scalar_type() == at::kDouble ? at::kDouble : at::kFloat) + 1};
}

IValue optional(const Tensor& tensor) { return tensor.defined() ? IValue(tensor) : IValue(); }

Arguments layer_norm_arguments(const Tensor& dy, const Saved& s) {
  return {dy,
          s.tensors[0],
          s.attributes[0],
          s.results[0],
          s.results[1],
          optional(s.tensors[1]),
          optional(s.tensors[2]),
          c10::List<bool>({s.needs[0], s.needs[1], s.needs[2]})};
}

Arguments group_norm_arguments(const Tensor& dy, const Saved& s) {
  return {dy,
          s.tensors[0],
          s.results[0],
          s.results[1],
          optional(s.tensors[1]),
          s.attributes[0],
          s.attributes[1],
          s.attributes[2],
          s.attributes[3],
          c10::List<bool>({s.needs[0], s.needs[1], s.needs[2]})};
}

Arguments group_norm_silu_arguments(const Tensor& dy, const Saved& s) {
  return {dy,     s.results[0], s.results[1], s.tensors[0], s.tensors[1], s.tensors[2], s.attributes[0],
          "NCHW", 1.0,          s.needs[1],   s.needs[2]};
}

Arguments group_norm_swish_arguments(const Tensor& dy, const Saved& s) {
  return {dy,           s.results[0],    s.results[1],    s.tensors[0],    s.tensors[1],
          s.tensors[2], s.attributes[0], s.attributes[1], s.attributes[4], s.needs[1],
          s.needs[2]};
}

Arguments scaled_masked_softmax_arguments(const Tensor& dy, const Saved& s) {
  return {dy, s.results[0], s.tensors[1].defined() ? IValue(s.tensors[1]) : IValue(), s.attributes[0], s.attributes[1]};
}

// Of softmax and log softmax.
Arguments softmax_arguments(const Tensor& dy, const Saved& s) { return {dy, s.results[0], s.attributes[0]}; }

Arguments nsa_compress_arguments(const Tensor& dy, const Saved& s) {
  // The forward's attributes: act_seq_len, layout, compress_block_size, compress_stride, act_seq_len_type. The backward
  // operator has layout last.
  return {dy,
          s.tensors[0],
          s.tensors[1],
          s.attributes[0],
          s.attributes[2],
          s.attributes[3],
          s.attributes[4],
          s.attributes[1]};
}

Arguments rotary_position_embedding_arguments(const Tensor& dy, const Saved& s) {
  const bool sums = s.needs[1] || s.needs[2];
  return {dy, s.tensors[1], s.tensors[2], sums ? IValue(s.tensors[0]) : IValue(), s.attributes[0]};
}

Arguments swi_glu_arguments(const Tensor& dy, const Saved& s) { return {dy, s.tensors[0], s.attributes[0]}; }

Arguments gelu_v2_arguments(const Tensor& dy, const Saved& s) {
  return {dy, s.tensors[0], s.attributes[0].toInt() == 0 ? "none" : "tanh"};
}

// Without swish, the gradient of group_norm_swish is that of group_norm.
bool has_swish(at::ArrayRef<IValue> arguments) { return arguments[6].toBool(); }

// Of group_norm: its gradient gives beta's the dtype of gamma.
bool are_of_one_dtype(at::ArrayRef<IValue> arguments) {
  const auto gamma = arguments[1].toOptional<Tensor>(), beta = arguments[2].toOptional<Tensor>();
  return !gamma || !beta || !gamma->defined() || !beta->defined() || gamma->scalar_type() == beta->scalar_type();
}

// Of group_norm_silu: its gradient is swish's, which takes both.
bool has_gamma_and_beta(at::ArrayRef<IValue> arguments) { return !arguments[1].isNone() && !arguments[2].isNone(); }

// Of add_layer_norm: the gradient is that of the sum, which must be a result, and there is no third term.
bool gives_sum_of_two(at::ArrayRef<IValue> arguments) { return arguments[4].isNone() && arguments[6].toBool(); }

}  // namespace

struct Derivative {
  const char* forward;
  const char* backward;
  std::vector<int> tensors;  // which of the forward's arguments are tensors
  std::vector<int> saved;    // which of the forward's results are saved
  int y = 0;                 // which of its results is differentiated
  int mean = -1, rstd = -1;  // which of its results these are; -1: it has none
  // Which of its results is the sum of its first two tensors. The backward operator is that of the sum, which is saved
  // first, in the place of these two; its gradient and what comes in for the sum are the gradient of both.
  int sum = -1;
  bool takes_of_sum = false;  // the backward operator adds what comes in for the sum
  // Which attribute is the factor of the first tensor in the sum that the statistics are of; -1: they are of the first.
  int factor = -1;
  bool by_group = false;  // mean and rstd have shape [N, groups], which does not broadcast to x
  // The gradients of the parameters depend on the parameters' shapes, not on their values.
  bool parameters_by_shape = false;
  // The first tensor's values are for the gradients of the others alone.
  bool first_for_others = false;
  Arguments (*arguments)(const Tensor& dy, const Saved& saved);  // of the backward operator
  // Whether the backward operator can differentiate the call; null: always.
  bool (*applies)(at::ArrayRef<IValue> arguments) = nullptr;

  bool is_tensor(int argument) const {
    for (const int index : tensors) {
      if (index == argument) return true;
    }
    return false;
  }
};

namespace {

const std::array<Derivative, 16>& derivatives() {
  static const std::array<Derivative, 16> all{{
      {.forward = "rms_norm",
       .backward = "rms_norm_grad",
       .tensors = {0, 1},
       .saved = {1},
       .rstd = 1,
       .parameters_by_shape = true,
       .arguments = rms_norm_arguments},
      {.forward = "add_rms_norm",
       .backward = "rms_norm_grad",
       .tensors = {0, 1, 2},
       .saved = {2, 1},
       .rstd = 1,
       .sum = 2,
       .parameters_by_shape = true,
       .arguments = add_rms_norm_arguments},
      {.forward = "add_layer_norm",
       .backward = "add_layer_norm_grad",
       .tensors = {0, 1, 2, 3},
       .saved = {3, 1, 2},
       .mean = 1,
       .rstd = 2,
       .sum = 3,
       .takes_of_sum = true,
       .parameters_by_shape = true,
       .arguments = add_layer_norm_arguments,
       .applies = gives_sum_of_two},
      {.forward = "deep_norm",
       .backward = "deep_norm_grad",
       .tensors = {0, 1, 2, 3},
       .saved = {0, 1},
       .y = 2,
       .mean = 0,
       .rstd = 1,
       .factor = 0,
       .arguments = deep_norm_arguments},
      {.forward = "gemma_rms_norm",
       .backward = "rms_norm_grad",
       .tensors = {0, 1},
       .saved = {1},
       .rstd = 1,
       .parameters_by_shape = true,
       .arguments = gemma_rms_norm_arguments},
      {.forward = "layer_norm",
       .backward = "layer_norm_backward",
       .tensors = {0, 2, 3},
       .saved = {1, 2},
       .mean = 1,
       .rstd = 2,
       .parameters_by_shape = true,
       .arguments = layer_norm_arguments},
      {.forward = "group_norm",
       .backward = "group_norm_backward",
       .tensors = {0, 1, 2},
       .saved = {1, 2},
       .mean = 1,
       .rstd = 2,
       .by_group = true,
       .parameters_by_shape = true,
       .arguments = group_norm_arguments,
       .applies = are_of_one_dtype},
      {.forward = "group_norm_silu",
       .backward = "group_norm_swish_grad",
       .tensors = {0, 1, 2},
       .saved = {1, 2},
       .mean = 1,
       .rstd = 2,
       .by_group = true,
       .arguments = group_norm_silu_arguments,
       .applies = has_gamma_and_beta},
      {.forward = "group_norm_swish",
       .backward = "group_norm_swish_grad",
       .tensors = {0, 1, 2},
       .saved = {1, 2},
       .mean = 1,
       .rstd = 2,
       .by_group = true,
       .arguments = group_norm_swish_arguments,
       .applies = has_swish},
      {.forward = "scaled_masked_softmax",
       .backward = "scaled_masked_softmax_backward",
       .tensors = {0, 1},
       .saved = {0},
       .arguments = scaled_masked_softmax_arguments},
      {.forward = "softmax",
       .backward = "softmax_backward",
       .tensors = {0},
       .saved = {0},
       .arguments = softmax_arguments},
      {.forward = "log_softmax",
       .backward = "log_softmax_backward",
       .tensors = {0},
       .saved = {0},
       .arguments = softmax_arguments},
      {.forward = "nsa_compress",
       .backward = "nsa_compress_grad",
       .tensors = {0, 1},
       .saved = {},
       .parameters_by_shape = true,
       .arguments = nsa_compress_arguments},
      {.forward = "rotary_position_embedding",
       .backward = "rotary_position_embedding_grad",
       .tensors = {0, 1, 2},
       .saved = {},
       .first_for_others = true,
       .arguments = rotary_position_embedding_arguments},
      {.forward = "swi_glu", .backward = "swi_glu_grad", .tensors = {0}, .saved = {}, .arguments = swi_glu_arguments},
      {.forward = "gelu_v2",
       .backward = "gelu_backward_v2",
       .tensors = {0},
       .saved = {},
       .arguments = gelu_v2_arguments},
  }};
  return all;
}

// Turns [N, groups] into [N, channels, 1, ...], which broadcasts to x: each channel gets the value of its group.
Tensor per_channel(const Tensor& statistic, const Tensor& x) {
  std::vector<c10::SymInt> shape(x.dim(), 1);
  shape[0] = x.sym_size(0);
  shape[1] = x.sym_size(1);
  return statistic.repeat_interleave_symint(x.sym_size(1) / statistic.sym_size(1), 1).reshape_symint(shape);
}

// Adds to dx the gradients that reach x through the results mean and rstd:
//   dx + (dmean - drstd * rstd^3 * (x - mean)) / elements of a row
// The factors are multiplied in an order in which no product leaves the range of its dtype.
Tensor add_gradient_of_statistics(const Derivative& derivative, const Tensor& dx, const Tensor& x, const Tensor& mean,
                                  const Tensor& rstd, const Tensor& dmean, const Tensor& drstd) {
  const c10::Scalar elements(x.sym_numel() / rstd.sym_numel().max(1));
  const auto spread = [&](const Tensor& statistic) {
    return derivative.by_group ? per_channel(statistic, x) : statistic;
  };
  const Tensor r = spread(rstd);
  Tensor part = dmean.defined() ? spread(dmean) / elements : at::zeros_like(r);
  if (drstd.defined()) {
    const Tensor centred = mean.defined() ? x - spread(mean) : x;
    part = part - spread(drstd) * r / elements * r * (r * centred);
  }
  part = dx.defined() ? dx + part : part.expand_symint(x.sym_sizes());
  return part.to(x.scalar_type());
}

// The tensor to save for the backward function, as `keep` in descend.torch.derivatives. If only its shape is needed,
// that is an expanded scalar, so that the values can be freed. PyTorch does not save inference tensors: a copy is saved
// instead if no gradient is needed.
Tensor to_save(const std::optional<Tensor>& tensor, bool needs_values = true) {
  if (!tensor) return {};
  if (!needs_values) return at::ones({}, tensor->options()).expand(tensor->sizes());
  return tensor->is_inference() && !tensor->requires_grad() ? tensor->clone() : *tensor;
}

// Thrown if the engine did not compute the call. The call is then made in Python, which raises the error if there is
// one.
struct NotComputed {};

// A list as a tuple. Compiled autograd finds equal nodes by the hash of their attributes, and lists have no hash.
IValue list_to_tuple(const IValue& attribute) {
  if (!attribute.isIntList()) return attribute;
  std::vector<IValue> numbers;
  for (const int64_t number : attribute.toIntVector()) numbers.emplace_back(number);
  return c10::ivalue::Tuple::create(std::move(numbers));
}

IValue tuple_to_list(const IValue& attribute) {
  if (!attribute.isTuple()) return attribute;
  c10::List<int64_t> list;
  for (const IValue& number : attribute.toTupleRef().elements()) list.push_back(number.toInt());
  return list;
}

}  // namespace

// The forward call, as Function::apply passes it to forward().
struct Request {
  const TorchOperator& op;
  const Derivative& derivative;
  at::ArrayRef<IValue> arguments;
  Tensor result;  // forward() sets it to the first result
};

// PyTorch's error messages show this name.
class DescendBackward : public torch::autograd::Function<DescendBackward> {
 public:
  static constexpr bool is_traceable = true;  // compiled autograd may call backward() with fake tensors

  static variable_list forward(AutogradContext* context, Request* request, const std::optional<Tensor>& first,
                               const std::optional<Tensor>& second, const std::optional<Tensor>& third,
                               const std::optional<Tensor>& fourth) {
    auto results = request->op.run(request->arguments);
    if (!results) throw NotComputed();
    const Derivative& derivative = request->derivative;
    request->result = (*results)[request->derivative.y];
    variable_list save;
    save.reserve(kTensors + derivative.saved.size());
    const bool of_sum = derivative.sum >= 0;
    const bool needs_values =
        !derivative.parameters_by_shape || first->requires_grad() || (of_sum && second->requires_grad());
    const bool needs_first = !derivative.first_for_others || second->requires_grad() || third->requires_grad();
    save.push_back(to_save(first, needs_first && !of_sum));
    save.push_back(to_save(second, needs_values && !of_sum));
    save.push_back(to_save(third, needs_values));
    save.push_back(to_save(fourth, needs_values));
    for (const int k : derivative.saved) save.push_back((*results)[k]);
    context->save_for_backward(std::move(save));
    std::vector<IValue> attributes;
    for (size_t i = 0; i < request->arguments.size(); ++i) {
      if (!derivative.is_tensor(static_cast<int>(i))) attributes.push_back(list_to_tuple(request->arguments[i]));
    }
    context->saved_data["attributes"] = c10::ivalue::Tuple::create(std::move(attributes));
    context->saved_data["derivative"] = static_cast<int64_t>(&derivative - derivatives().data());
    context->set_materialize_grads(false);
    return std::move(*results);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Derivative& derivative = derivatives()[context->saved_data.at("derivative").toInt()];
    variable_list found = context->get_saved_variables();
    Saved saved;
    for (const IValue& attribute : context->saved_data.at("attributes").toTupleRef().elements()) {
      saved.attributes.push_back(tuple_to_list(attribute));
    }
    size_t edge = 0;  // of the graph; a tensor that was not given has none
    for (size_t k = 0; k < kTensors; ++k) {
      saved.needs[k] = found[k].defined() && context->needs_input_grad(edge);
      edge += found[k].defined();
      saved.tensors[k] = std::move(found[k]);
    }
    saved.results.assign(found.begin() + kTensors, found.end());

    const bool of_sum = derivative.sum >= 0;
    std::array<Tensor, kTensors> results;
    const Tensor of_sums = of_sum ? gradients[derivative.sum] : Tensor();
    const Tensor& dy = gradients[derivative.y];
    if (dy.defined()) {
      if (derivative.takes_of_sum) saved.of_sum = of_sums;
      Arguments stack = derivative.arguments(dy, saved);
      operator_of(derivative).callBoxed(&stack);
      // The gradients come in the order of the forward's tensors. A mask is the last tensor, and has no gradient.
      for (size_t k = 0; k < stack.size(); ++k) results[k] = std::move(stack[k]).toTensor();
      if (of_sum) std::move_backward(results.begin() + 1, results.end() - 1, results.end());
    }
    if (of_sums.defined() && !saved.of_sum.defined()) {
      results[0] = results[0].defined() ? results[0] + of_sums : of_sums;
    }
    const Tensor dmean = derivative.mean < 0 ? Tensor() : gradients[derivative.mean];
    const Tensor drstd = derivative.rstd < 0 ? Tensor() : gradients[derivative.rstd];
    const bool is_scaled = derivative.factor >= 0;
    const bool needs_rows = saved.needs[0] || ((of_sum || is_scaled) && saved.needs[1]);
    if (needs_rows && (dmean.defined() || drstd.defined())) {
      const Tensor& rstd = saved.results.back();
      const Tensor mean = derivative.mean < 0 ? Tensor() : saved.results[saved.results.size() - 2];
      const auto add = [&](const Tensor& dx, const Tensor& x) {
        return add_gradient_of_statistics(derivative, dx, x, mean, rstd, dmean, drstd);
      };
      if (is_scaled) {
        const double factor = saved.attributes[derivative.factor].toDouble();
        results[1] = add(results[1], saved.tensors[0] * factor + saved.tensors[1]);
        results[0] = results[1] * factor;
      } else {
        results[0] = add(results[0], of_sum ? saved.results[0] : saved.tensors[0]);
      }
    }
    if (of_sum) results[1] = results[0];
    variable_list all(1);  // the request has no gradient
    for (size_t k = 0; k < kTensors; ++k) all.push_back(saved.tensors[k].defined() ? results[k] : Tensor());
    return all;
  }

 private:
  static const c10::OperatorHandle& operator_of(const Derivative& derivative) {
    static const auto handles = [] {
      std::vector<c10::OperatorHandle> list;
      for (const Derivative& each : derivatives()) {
        const std::string name = std::string("descend::") + each.backward;
        list.push_back(c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), ""));
      }
      return list;
    }();
    return handles[&derivative - derivatives().data()];
  }
};

const Derivative* find_derivative(const char* forward) {
  for (const Derivative& derivative : derivatives()) {
    if (std::string_view(derivative.forward) == forward) return &derivative;
  }
  return nullptr;
}

std::optional<std::vector<Tensor>> differentiate(const TorchOperator& forward, const Derivative& derivative,
                                                 at::ArrayRef<IValue> arguments) {
  if (derivative.applies != nullptr && !derivative.applies(arguments)) return std::nullopt;
  std::array<std::optional<Tensor>, kTensors> tensors;
  for (size_t k = 0; k < derivative.tensors.size(); ++k) {
    tensors[k] = arguments[derivative.tensors[k]].toOptional<Tensor>();
    if (tensors[k] && !tensors[k]->defined()) tensors[k].reset();
  }
  Request request{forward, derivative, arguments, {}};
  try {
    return DescendBackward::apply(&request, tensors[0], tensors[1], tensors[2], tensors[3]);
  } catch (const NotComputed&) {
    return std::nullopt;
  } catch (...) {
    // A hook on saved tensors threw, as checkpointing does to stop early. The node has saved results, and each result
    // has the node as grad_fn: without this the cycle would never be freed.
    if (request.result.defined() && request.result.grad_fn()) request.result.grad_fn()->release_resources();
    throw;
  }
}

}  // namespace descend::pytorch
