// aclnnCrossEntropyLossGrad: contract and plan.
#include "operators/cross_entropy_shape.h"
#include "operators/registry.h"
#include "runtime/fp_environment.h"

namespace descend::kernels {
template <class T>
void cross_entropy_loss_grad(const CrossEntropyLossGrad<T>& problem);
}

namespace descend {
namespace {

enum {
  kGradLoss,
  kLogProb,
  kTarget,
  kWeight,
  kGradZloss,
  kLse,
  kReduction,
  kIgnoreIndex,
  kLabelSmoothing,
  kZlossScale,
  kOut,
};

constexpr CrossEntropyParameters kParameters{kLogProb,     kTarget,         kWeight,    kReduction,
                                             kIgnoreIndex, kLabelSmoothing, kZlossScale};

// Whether logProb is the forward's input, which a lse of shape [N, 1] says.
bool takes_input(const Call& call) { return call.on_host() && call.given(kLse) && call[kLse].tensor.rank() == 2; }

// torch_npu gives tensors without elements for what is not there.
bool has_zloss(const Call& call) { return call.on_host() && call[kZlossScale].real != 0; }

bool computes(const Call& call, int i) {
  if (i == kGradZloss) return has_zloss(call) && call.given(i) && !call[i].tensor.empty();
  if (i == kLse) return has_zloss(call) || takes_input(call);
  return true;
}

void infer(Call& call) {
  const Tensor& log_prob = call[kLogProb].tensor;
  if (!call.given(kOut)) call[kOut].tensor = contiguous_tensor(log_prob.dtype, log_prob.shape);
}

template <class T>
void plan_kernel(const Call& call, Plan& plan) {
  using W = kernels::Wide<T>;
  const int64_t rows = call[kLogProb].tensor.shape[0], columns = call[kLogProb].tensor.shape[1];
  const kernels::Reduction reduction = reduction_of(call, kReduction);
  const double smoothing = call[kLabelSmoothing].real, scale = has_zloss(call) ? call[kZlossScale].real : 0;
  const bool is_input = takes_input(call), has_lse = computes(call, kLse), has_grad_zloss = computes(call, kGradZloss);
  const StagedRows log_prob = stage_rows(call, plan, kLogProb, 1, columns, kElementOf<T>);
  const StagedTargets targets = stage_targets(call, kParameters);
  const auto weight = stage_weight<W>(call, plan, kWeight);
  const auto numbers = [&](int i) { return stage_vector(call, plan, i, kernels::Element::kFloat64); };
  const Place grad = numbers(kGradLoss), grad_zloss = has_grad_zloss ? numbers(kGradZloss) : Place{},
              lse = has_lse ? numbers(kLse) : Place{};
  const StagedOutput out = StagedOutput::rows(call, plan, kOut, 1, columns, kElementOf<T>);
  const bool counts = reduction == kernels::Reduction::kMean || smoothing != 0;
  const Place counted = plan.scratch(1, sizeof(kernels::Counted));
  if (counts) {
    plan.step("count", 8.0 * rows, [=](const Addresses& a) {
      const FixedFpEnvironment environment;
      *a.at<kernels::Counted>(counted) = kernels::count_targets(targets.at(a), rows, weight.at(a));
    });
  }
  plan.step("cross_entropy_loss_grad", 2.0 * rows * columns * sizeof(T), [=, out = out.staged()](const Addresses& a) {
    kernels::cross_entropy_loss_grad<T>({.rows = rows,
                                         .columns = columns,
                                         .log_prob = log_prob.at<const T>(a),
                                         .targets = targets.at(a),
                                         .weight = weight.at(a),
                                         .counted = a.at<const kernels::Counted>(counted),
                                         .reduction = reduction,
                                         .smoothing = smoothing,
                                         .zloss_scale = scale,
                                         .is_input = is_input,
                                         .grad = a.at<const double>(grad),
                                         .grad_zloss = has_grad_zloss ? a.at<const double>(grad_zloss) : nullptr,
                                         .lse = has_lse ? a.at<const double>(lse) : nullptr,
                                         .out = out.at<T>(a)});
  });
  out.finish(call, plan);
}

Status check_lse(const Call& call) {
  if (!call.given(kLse)) {
    return call.fail(Code::kParamInvalid, call.name(kLse), " is null, but must be given where ", call.name(kZlossScale),
                     " is not 0.");
  }
  if (!takes_input(call)) return check_row_numbers(call, kParameters, kLse, Code::kParamInvalid);
  const Dims &shape = call[kLse].tensor.shape, &scores = call[kLogProb].tensor.shape;
  if (shape[0] == scores[0] && shape[1] == 1) return {};
  return call.fail(Code::kParamInvalid, call.name(kLse), " has shape ", to_string(shape), ", but must have [",
                   scores[0], "], or [", scores[0], ", 1] where ", call.name(kLogProb), " is the forward's input.");
}

Status validate_and_plan(const Call& call, Plan* plan) {
  DESCEND_RETURN_IF_ERROR(check_cross_entropy(call, kParameters));
  DESCEND_RETURN_IF_ERROR(check_loss_shape(call, kParameters, kGradLoss, Code::kParamInvalid));
  DESCEND_RETURN_IF_ERROR(check_same_shape(call, kOut, kLogProb));
  if (!call.on_host() && call[kLabelSmoothing].real != 0) {
    return call.fail(Code::kParamInvalid, call.name(kLabelSmoothing), " is ", call[kLabelSmoothing].real,
                     ", but must be 0 on ", info(call.product).name, ".");
  }
  if (computes(call, kGradZloss)) {
    DESCEND_RETURN_IF_ERROR(check_loss_shape(call, kParameters, kGradZloss, Code::kParamInvalid));
  }
  if (computes(call, kLse)) DESCEND_RETURN_IF_ERROR(check_lse(call));
  if (plan == nullptr || call[kLogProb].tensor.empty()) return {};
  with_element_type(element_of_scores(call, kParameters, kOut), [&]<class T>(T) { plan_kernel<T>(call, *plan); });
  return {};
}

}  // namespace

extern const Operator cross_entropy_loss_grad{
    .name = "cross_entropy_loss_grad",
    .c_name = "aclnnCrossEntropyLossGrad",
    .summary = "Gradient of cross entropy with respect to the scores.",
    .formula =
        "g[n]      = gradLoss / sum of weight[t] over the rows that count (mean), gradLoss (sum), gradLoss[n] (none)\n"
        "a[n]      = g[n] * (1 - s) * weight[t]      b[n] = g[n] * s / C      t = target[n], s = labelSmoothing\n"
        "z[n]      = 2 * scale * lse[n] * (gradLoss + gradZloss), for mean / rows that count; 0 where scale is 0\n"
        "out[n, c] = exp(logProb[n, c]) * (a[n] + b[n] * sum of weight + z[n]) - b[n] * weight[c] - (a[n] if c = t)",
    .source = "aclnnCrossEntropyLossGrad",
    .notes =
        "A row whose target is ignoreIndex gets 0, also where no row counts; one whose target is no class gets NaN. "
        "gradLoss has one number, of rank 0 or 1, where the loss is reduced. out may be exactly logProb. On Atlas "
        "products labelSmoothing must be 0, and zloss is not computed. On host lseForZlossOptional may have shape "
        "[N, 1]: logProb is then the forward's input, of which lse is taken away first, so that no logarithms of "
        "probabilities need to be kept. host also takes INT32, DOUBLE and any mix of floating dtypes.",
    .products = kCrossEntropyProducts,
    .parameters = {{"gradLoss", "grad_loss", Kind::kTensor, Role::kInput, false, nullptr, false,
                    "[] or [1], or [N] for none", "Gradient of the loss that the forward returned."},
                   {"logProb", "log_prob", Kind::kTensor, Role::kInput, false, nullptr, false, "[N, C]",
                    "Logarithms of the probabilities, from the forward."},
                   input_of("target", "[N]", "The class of each row, from 0 to C - 1, or ignoreIndex."),
                   {"weightOptional", "weight", Kind::kTensor, Role::kInput, true, "None", false, "[C]",
                    "Weight of each class; null: all are 1."},
                   {"gradZlossOptional", "grad_zloss", Kind::kTensor, Role::kInput, true, "None", false, "as gradLoss",
                    "Gradient of the forward's zloss; null or empty: 0."},
                   {"lseForZlossOptional", "lse_for_zloss", Kind::kTensor, Role::kInput, true, "None", false,
                    "[N], or [N, 1] with the forward's input", "lse of each row, from the forward."},
                   reduction_parameter(),
                   ignore_index_parameter(),
                   label_smoothing_parameter(),
                   zloss_scale_parameter(),
                   output_of("out", "out", "as logProb", "Gradient with respect to the forward's input.")},
    .dtypes = cross_entropy_dtypes(7, 2, {Dtype::kInt64}),
    .errors = {{Code::kParamNullptr, "gradLoss, logProb, target or out is null"},
               {Code::kParamInvalid,
                "dtypes outside the table or different from each other; a private format; a view outside its storage; "
                "an output that overlaps another tensor other than exactly; shapes of gradLoss, gradZlossOptional, "
                "lseForZlossOptional and out; labelSmoothing on Atlas products; no lse where the scale is not 0"},
               {Code::kTilingError, "shapes of logProb, target and weightOptional; reductionOptional, labelSmoothing"},
               {Code::kFindKernelError, "the product has no such operator"}},
    .infer = infer,
    .validate_and_plan = validate_and_plan,
    .computes = computes,
    .const_outputs = true,
};

}  // namespace descend
