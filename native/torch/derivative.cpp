#include "torch/derivative.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <string_view>

namespace descend::pytorch {

using at::Tensor;
using c10::IValue;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

constexpr size_t kTensors = 3;

// What the way back finds again.
struct Saved {
  std::array<Tensor, kTensors> tensors;  // the forward's tensor arguments, undefined where there is none
  variable_list results;                 // of the forward's results those that the link names
  std::vector<IValue> attributes;        // the forward's arguments that are no tensors, in order
  std::array<bool, kTensors> needs;      // which tensors' gradients are asked for
};

using Arguments = std::vector<IValue>;

Arguments rms_norm_arguments(const Tensor& dy, const Saved& s) {
  return {dy, s.tensors[0], s.results[0], s.tensors[1]};
}

Arguments layer_norm_arguments(const Tensor& dy, const Saved& s) {
  const auto optional = [](const Tensor& t) { return t.defined() ? IValue(t) : IValue(); };
  return {dy,
          s.tensors[0],
          s.attributes[0],
          s.results[0],
          s.results[1],
          optional(s.tensors[1]),
          optional(s.tensors[2]),
          c10::List<bool>({s.needs[0], s.needs[1], s.needs[2]})};
}

Arguments group_norm_swish_arguments(const Tensor& dy, const Saved& s) {
  return {dy,           s.results[0],    s.results[1],    s.tensors[0],    s.tensors[1],
          s.tensors[2], s.attributes[0], s.attributes[1], s.attributes[4], s.needs[1],
          s.needs[2]};
}

Arguments scaled_masked_softmax_arguments(const Tensor& dy, const Saved& s) {
  return {dy, s.results[0], s.tensors[1].defined() ? IValue(s.tensors[1]) : IValue(), s.attributes[0], s.attributes[1]};
}

Arguments nsa_compress_arguments(const Tensor& dy, const Saved& s) {
  // act_seq_len; layout, W, S, act_seq_len_type of the forward: W, S, act_seq_len_type, layout of the backward
  return {dy,
          s.tensors[0],
          s.tensors[1],
          s.attributes[0],
          s.attributes[2],
          s.attributes[3],
          s.attributes[4],
          s.attributes[1]};
}

// group_norm_swish without swish has no backward operator of its own.
bool with_swish(at::ArrayRef<IValue> arguments) { return arguments[6].toBool(); }

}  // namespace

struct Link {
  const char* forward;
  const char* backward;
  std::array<int, kTensors> tensors;                             // their places among the forward's arguments; -1: none
  std::vector<int> saved;                                        // which of the forward's results are saved
  int mean = -1, rstd = -1;                                      // which of its results they are; -1: there is none
  bool by_group = false;                                         // these are [N, groups], not shaped to broadcast
  bool parameters_by_shape = false;                              // whose gradients do not ask for their values
  Arguments (*arguments)(const Tensor& dy, const Saved& saved);  // the backward's
  bool (*ordinary)(at::ArrayRef<IValue> arguments) = nullptr;    // null: always

  bool is_tensor(int argument) const {
    for (const int place : tensors) {
      if (place == argument) return true;
    }
    return false;
  }
};

namespace {

const std::array<Link, 5>& links() {
  static const std::array<Link, 5> all{{
      {.forward = "rms_norm",
       .backward = "rms_norm_grad",
       .tensors = {0, 1, -1},
       .saved = {1},
       .rstd = 1,
       .parameters_by_shape = true,
       .arguments = rms_norm_arguments},
      {.forward = "layer_norm",
       .backward = "layer_norm_backward",
       .tensors = {0, 2, 3},
       .saved = {1, 2},
       .mean = 1,
       .rstd = 2,
       .parameters_by_shape = true,
       .arguments = layer_norm_arguments},
      {.forward = "group_norm_swish",
       .backward = "group_norm_swish_grad",
       .tensors = {0, 1, 2},
       .saved = {1, 2},
       .mean = 1,
       .rstd = 2,
       .by_group = true,
       .arguments = group_norm_swish_arguments,
       .ordinary = with_swish},
      {.forward = "scaled_masked_softmax",
       .backward = "scaled_masked_softmax_backward",
       .tensors = {0, 1, -1},
       .saved = {0},
       .arguments = scaled_masked_softmax_arguments},
      {.forward = "nsa_compress",
       .backward = "nsa_compress_grad",
       .tensors = {0, 1, -1},
       .saved = {},
       .parameters_by_shape = true,
       .arguments = nsa_compress_arguments},
  }};
  return all;
}

// [N, groups] as it broadcasts to x: for each channel what its group has.
Tensor by_channel(const Tensor& statistic, const Tensor& x) {
  std::vector<c10::SymInt> shape(x.dim(), 1);
  shape[0] = x.sym_size(0);
  shape[1] = x.sym_size(1);
  return statistic.repeat_interleave_symint(x.sym_size(1) / statistic.sym_size(1), 1).reshape_symint(shape);
}

// dx + (dmean - drstd * rstd^3 * (x - mean)) / elements of a row: what comes through a norm's statistics. Multiplied in
// an order in which no factor leaves its range.
Tensor add_through_statistics(const Link& link, const Tensor& dx, const Tensor& x, const Tensor& mean,
                              const Tensor& rstd, const Tensor& dmean, const Tensor& drstd) {
  const c10::Scalar elements(x.sym_numel() / rstd.sym_numel().max(1));
  const auto spread = [&](const Tensor& statistic) { return link.by_group ? by_channel(statistic, x) : statistic; };
  const Tensor r = spread(rstd);
  Tensor part = dmean.defined() ? spread(dmean) / elements : at::zeros_like(r);
  if (drstd.defined()) {
    const Tensor centred = mean.defined() ? x - spread(mean) : x;
    part = part - spread(drstd) * r / elements * r * (r * centred);
  }
  part = dx.defined() ? dx + part : part.expand_symint(x.sym_sizes());
  return part.to(x.scalar_type());
}

// What is saved of a tensor: as `keep` of descend.torch.derivatives.
Tensor keep(const std::optional<Tensor>& tensor, bool value = true) {
  if (!tensor) return {};
  if (!value) return at::ones({}, tensor->options()).expand(tensor->sizes());
  return tensor->is_inference() && !tensor->requires_grad() ? tensor->clone() : *tensor;
}

// The engine refused, or the call is not for it: Python says what there is to say.
struct OutOfTheOrdinary {};

// Attributes as a node keeps them. Compiled autograd looks for equal nodes by hash, which lists have none of.
IValue keep(const IValue& attribute) {
  if (!attribute.isIntList()) return attribute;
  std::vector<IValue> numbers;
  for (const int64_t number : attribute.toIntVector()) numbers.emplace_back(number);
  return c10::ivalue::Tuple::create(std::move(numbers));
}

IValue give_back(const IValue& kept) {
  if (!kept.isTuple()) return kept;
  c10::List<int64_t> list;
  for (const IValue& number : kept.toTupleRef().elements()) list.push_back(number.toInt());
  return list;
}

}  // namespace

// A call on its way through Function::apply.
struct Request {
  const TorchOperator& op;
  const Link& link;
  at::ArrayRef<IValue> arguments;
  Tensor result;  // the first
};

// The name stands in PyTorch's error messages.
class DescendBackward : public torch::autograd::Function<DescendBackward> {
 public:
  static constexpr bool is_traceable = true;  // compiled autograd may call `backward` with tensors without data

  static variable_list forward(AutogradContext* context, Request* request, const std::optional<Tensor>& first,
                               const std::optional<Tensor>& second, const std::optional<Tensor>& third) {
    auto results = request->op.run(request->arguments);
    if (!results) throw OutOfTheOrdinary();
    const Link& link = request->link;
    request->result = results->front();
    variable_list save;
    save.reserve(kTensors + link.saved.size());
    const bool values = !link.parameters_by_shape || first->requires_grad();
    save.push_back(keep(first));
    save.push_back(keep(second, values));
    save.push_back(keep(third, values));
    for (const int k : link.saved) save.push_back((*results)[k]);
    context->save_for_backward(std::move(save));
    std::vector<IValue> attributes;
    for (size_t i = 0; i < request->arguments.size(); ++i) {
      if (!link.is_tensor(static_cast<int>(i))) attributes.push_back(keep(request->arguments[i]));
    }
    context->saved_data["attributes"] = c10::ivalue::Tuple::create(std::move(attributes));
    context->saved_data["link"] = static_cast<int64_t>(&link - links().data());
    context->set_materialize_grads(false);
    return std::move(*results);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Link& link = links()[context->saved_data.at("link").toInt()];
    variable_list found = context->get_saved_variables();
    Saved saved;
    for (const IValue& kept : context->saved_data.at("attributes").toTupleRef().elements()) {
      saved.attributes.push_back(give_back(kept));
    }
    size_t edge = 0;  // only tensors that were given have one
    for (size_t k = 0; k < kTensors; ++k) {
      saved.needs[k] = found[k].defined() && context->needs_input_grad(edge);
      edge += found[k].defined();
      saved.tensors[k] = std::move(found[k]);
    }
    saved.results.assign(found.begin() + kTensors, found.end());

    std::array<Tensor, kTensors> results;
    if (gradients[0].defined()) {
      Arguments stack = link.arguments(gradients[0], saved);
      operator_of(link).callBoxed(&stack);
      // In the order of the forward's tensors; a mask has none.
      for (size_t k = 0; k < stack.size(); ++k) results[k] = std::move(stack[k]).toTensor();
    }
    const Tensor dmean = link.mean < 0 ? Tensor() : gradients[link.mean];
    const Tensor drstd = link.rstd < 0 ? Tensor() : gradients[link.rstd];
    if (saved.needs[0] && (dmean.defined() || drstd.defined())) {
      const Tensor mean = link.mean < 0 ? Tensor() : saved.results[0];
      results[0] = add_through_statistics(link, results[0], saved.tensors[0], mean, saved.results.back(), dmean, drstd);
    }
    variable_list all(1);  // the request has no gradient
    for (size_t k = 0; k < kTensors; ++k) all.push_back(saved.tensors[k].defined() ? results[k] : Tensor());
    return all;
  }

 private:
  static const c10::OperatorHandle& operator_of(const Link& link) {
    static const auto handles = [] {
      std::vector<c10::OperatorHandle> list;
      for (const Link& each : links()) {
        const std::string name = std::string("descend::") + each.backward;
        list.push_back(c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), ""));
      }
      return list;
    }();
    return handles[&link - links().data()];
  }
};

const Link* find_link(const char* forward) {
  for (const Link& link : links()) {
    if (std::string_view(link.forward) == forward) return &link;
  }
  return nullptr;
}

std::optional<std::vector<Tensor>> differentiate(const TorchOperator& forward, const Link& link,
                                                 at::ArrayRef<IValue> arguments) {
  if (link.ordinary != nullptr && !link.ordinary(arguments)) return std::nullopt;
  std::array<std::optional<Tensor>, kTensors> tensors;
  for (size_t k = 0; k < kTensors; ++k) {
    if (link.tensors[k] >= 0) tensors[k] = arguments[link.tensors[k]].toOptional<Tensor>();
    if (tensors[k] && !tensors[k]->defined()) tensors[k].reset();
  }
  Request request{forward, link, arguments, {}};
  try {
    return DescendBackward::apply(&request, tensors[0], tensors[1], tensors[2]);
  } catch (const OutOfTheOrdinary&) {
    return std::nullopt;
  } catch (...) {
    // A hook on what is saved has thrown, as checkpointing does. The node then holds results that hold the node.
    if (request.result.defined() && request.result.grad_fn()) request.result.grad_fn()->release_resources();
    throw;
  }
}

}  // namespace descend::pytorch
