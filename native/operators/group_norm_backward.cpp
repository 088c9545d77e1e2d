// aclnnGroupNormBackward: contract and plan.
#include <algorithm>

#include "operators/group_norm_plan.h"
#include "operators/group_norm_shape.h"

namespace descend {
namespace {

enum {
  kGradOut,
  kInput,
  kMean,
  kRstd,
  kGamma,
  kSamples,
  kChannels,
  kInner,
  kGroups,
  kOutputMask,
  kGradInput,
  kGradGamma,
  kGradBeta
};

constexpr uint64_t kOutputs = 3;
constexpr int64_t kMostChannels = 240000, kMostGroupChannels = 8000;  // on every product but host
constexpr ProductSet kTraining(Product::kAtlasTraining);

std::vector<DtypeRow> dtype_rows() {
  const auto row = [](ProductSet products, DtypeSet x, DtypeSet mean, DtypeSet result) {
    return DtypeRow{products, {x, x, mean, mean, mean, result, mean, mean}};
  };
  std::vector<DtypeRow> rows;
  for (const Dtype dtype : {Dtype::kFloat, Dtype::kFloat16, Dtype::kBfloat16}) {
    const DtypeSet d{dtype};
    rows.push_back(row(dtype == Dtype::kBfloat16 ? kGroupNormProducts : kGroupNormProducts | kTraining, d, d, d));
  }
  for (const Dtype dtype : {Dtype::kFloat16, Dtype::kBfloat16}) {
    const DtypeSet d{dtype};
    rows.push_back(row(ProductSet(Product::kAscend950), d, kFloat32Only, d));
  }
  for (const Dtype dtype : {Dtype::kFloat, Dtype::kFloat16, Dtype::kBfloat16, Dtype::kDouble}) {
    rows.push_back(row(ProductSet(Product::kHost), DtypeSet{dtype}, kAllFloats, kAllFloats));
  }
  return rows;
}

bool has_mask(const Call& call) { return call.given(kOutputMask) && call[kOutputMask].list.size() == kOutputs; }

// An output whose mask is false is ignored. While the mask is not valid, all outputs are.
bool counts(const Call& call, int i) {
  return i < kGradInput || (has_mask(call) && call[kOutputMask].list[i - kGradInput] != 0);
}

// The gradients of gamma and beta are as gamma, and as the statistics where it is null.
void infer(Call& call) {
  const Tensor& input = call[kInput].tensor;
  if (!call.given(kGradInput)) call[kGradInput].tensor = contiguous_tensor(input.dtype, input.shape);
  const Dtype statistics = input.dtype == Dtype::kDouble ? Dtype::kDouble : Dtype::kFloat;
  const Tensor like = call.given(kGamma)
                          ? call[kGamma].tensor
                          : contiguous_tensor(statistics, {std::max<int64_t>(call[kChannels].integer, 0)});
  for (const int i : {kGradGamma, kGradBeta}) {
    if (!call.given(i)) call[i].tensor = contiguous_tensor(like.dtype, like.shape);
  }
}

Status validate_first(const Call& call) {
  if (has_mask(call)) return {};
  return call.fail(Code::kParamInvalid, call.name(kOutputMask), " has length ", call[kOutputMask].list.size(),
                   ", but must have length ", kOutputs, ", an entry for each output.");
}

Status validate(const Call& call, kernels::GroupShape* shape) {
  const auto invalid = [&](const auto&... parts) { return call.fail(Code::kParamInvalid, parts...); };
  const Dims sizes{call[kSamples].integer, call[kChannels].integer, call[kInner].integer};
  for (const int i : {kGradOut, kInput}) {
    const Tensor& got = call[i].tensor;
    if (multiply_to(sizes, got.elements())) continue;
    return invalid(call.name(i), " has shape ", to_string(got.shape), ", but must have as many elements as ",
                   call.name(kSamples), ", ", call.name(kChannels), " and ", call.name(kInner),
                   " multiply to, which are ", to_string(sizes), ".");
  }
  DESCEND_RETURN_IF_ERROR(check_groups(call, {kInput, kGamma, -1, kGroups, kMean, kRstd, Code::kParamInvalid, true},
                                       sizes[0], sizes[1], shape));
  const bool has_gamma = call.given(kGamma);
  if (counts(call, kGradInput)) DESCEND_RETURN_IF_ERROR(check_same_shape(call, kGradInput, kInput));
  for (const int i : {kGradGamma, kGradBeta}) {
    if (!counts(call, i)) continue;
    const Dims& got = call[i].tensor.shape;
    if (has_gamma) DESCEND_RETURN_IF_ERROR(check_same_shape(call, i, kGamma));
    if (has_gamma || got == Dims{sizes[1]}) continue;
    return invalid(call.name(i), " has shape ", to_string(got), ", but must have shape [", sizes[1],
                   "], one element for each channel.");
  }
  if (call.on_host() || (shape->channels <= kMostChannels && shape->group_channels() <= kMostGroupChannels)) return {};
  return invalid(call.name(kChannels), " is ", shape->channels, " and ", call.name(kGroups), " ", shape->groups,
                 ", but there must be at most ", kMostChannels, " channels, and ", kMostGroupChannels, " a group, on ",
                 info(call.product).name, ".");
}

void make_plan(const Call& call, const kernels::GroupShape& shape, Plan& plan) {
  const Dims& mask = call[kOutputMask].list;
  if (std::none_of(mask.begin(), mask.end(), [](int64_t wanted) { return wanted != 0; })) return;
  plan_group_norm_gradient(call, {kGradOut, kInput, kMean, kRstd, kGamma, -1, 0, kGradInput, kGradGamma, kGradBeta},
                           shape, plan);
}

}  // namespace

extern const Operator group_norm_backward{
    .name = "group_norm_backward",
    .c_name = "aclnnGroupNormBackward",
    .summary = "Gradients of group norm with respect to its input, its weight and its bias.",
    .formula =
        "xhat         = (input - mean) * rstd\n"
        "g            = gradOut * gamma\n"
        "gradInput    = rstd * (g - mean(g) - xhat * mean(g * xhat)), means over the group\n"
        "gradGammaOut = sum of gradOut * xhat over N and HxW\n"
        "gradBetaOut  = sum of gradOut over N and HxW",
    .source = "aclnnGroupNormBackward",
    .notes =
        "The elements of gradOut and input, whatever their shapes, are [N, C, HxW]; a group is C / group neighbouring "
        "channels of one sample. gamma null is all ones. An output whose mask is false is ignored altogether: it may "
        "be null, is not touched, and the functional form returns None for it. Strided and empty tensors are fine: "
        "without samples gradGammaOut and gradBetaOut are 0. Where they are allocated they are as gamma, without it "
        "FLOAT [C], DOUBLE for DOUBLE input. host also takes DOUBLE, any mix of floating dtypes for mean, rstd, gamma "
        "and the outputs, and any number of channels.",
    .products = kGroupNormProductsAndHost | kTraining,
    .parameters =
        {{"gradOut", "grad_out", Kind::kTensor, Role::kInput, false, nullptr, false,
          "N * C * HxW elements, usually as input", "Gradient of the loss with respect to the forward's output."},
         input_of("input", "N * C * HxW elements, usually [N, C, ...]", "Input of the forward."),
         input_of("mean", "N * group elements, usually [N, group]", "Mean of each group, from the forward."),
         input_of("rstd", "N * group elements, usually [N, group]",
                  "1 / sqrt(variance + eps) of each group, from the forward."),
         optional(input_of("gamma", "C elements, usually [C]", "Weight of the forward; null: all ones.")),
         {"N", "n", Kind::kInt, Role::kAttribute, false, nullptr, false, "", "The samples."},
         {"C", "c", Kind::kInt, Role::kAttribute, false, nullptr, false, "", "The channels."},
         {"HxW", "hxw", Kind::kInt, Role::kAttribute, false, nullptr, false, "",
          "The elements of a channel, 1 if there is no further dimension."},
         {"group", "group", Kind::kInt, Role::kAttribute, false, nullptr, false, "",
          "Groups that the channels fall into; divides C."},
         {"outputMask", "output_mask", Kind::kBoolArray, Role::kAttribute, false, "(True, True, True)", false, "",
          "Which of the three outputs are computed."},
         optional_if_unused(output_of("gradInput", "grad_input", "as input", "Gradient with respect to input.")),
         optional_if_unused(output_of("gradGammaOut", "grad_gamma_out", "as gamma", "Gradient with respect to gamma.")),
         optional_if_unused(output_of("gradBetaOut", "grad_beta_out", "as gamma", "Gradient with respect to beta."))},
    .dtypes = dtype_rows(),
    .errors =
        errors_of("gradOut, input, mean, rstd or outputMask is null; an output whose mask is true is null",
                  "an outputMask that has not 3 entries, which is looked at before any output; dtypes outside the "
                  "table; a private format; a view outside its storage; an output that overlaps another tensor other "
                  "than exactly; numbers of elements and shapes; group not positive or no divisor of C; on every "
                  "product but host more than 240000 channels, or more than 8000 a group"),
    .infer = infer,
    .validate_and_plan = validate_then_plan<kernels::GroupShape, validate, make_plan>,
    .counts = counts,
    .validate_first = validate_first,
};

}  // namespace descend
