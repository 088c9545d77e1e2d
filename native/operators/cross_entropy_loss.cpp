// aclnnCrossEntropyLoss: contract and plan.
#include "operators/cross_entropy_shape.h"
#include "operators/registry.h"
#include "runtime/fp_environment.h"

namespace descend::kernels {
template <class T>
void cross_entropy_loss(const CrossEntropyLoss<T>& problem);
}

namespace descend {
namespace {

enum {
  kInput,
  kTarget,
  kWeight,
  kReduction,
  kIgnoreIndex,
  kLabelSmoothing,
  kZlossScale,
  kReturnZloss,
  kLoss,
  kLogProb,
  kZloss,
  kLse,
};

constexpr CrossEntropyParameters kParameters{kInput,       kTarget,         kWeight,    kReduction,
                                             kIgnoreIndex, kLabelSmoothing, kZlossScale};

// lse is also what a gradient needs that gets the input in the place of log_prob.
bool computes(const Call& call, int i) {
  if (i == kZloss) return call.on_host() && call[kReturnZloss].flag && call[i].state != Argument::State::kNull;
  if (i == kLse) {
    return call.on_host() && call[i].state != Argument::State::kNull &&
           (call[kZlossScale].real != 0 || call[kLogProb].state == Argument::State::kNull);
  }
  return call[i].state != Argument::State::kNull || i == kLoss;
}

void infer(Call& call) {
  const Tensor& input = call[kInput].tensor;
  const int64_t rows = input.shape.empty() ? 0 : input.shape[0];
  const Dims loss{reduction_of(call, kReduction) == kernels::Reduction::kNone ? rows : 1};
  for (const auto& [output, shape] : {std::pair<int, const Dims&>{kLoss, loss}, {kLogProb, input.shape}}) {
    if (!call.given(output)) call[output].tensor = contiguous_tensor(input.dtype, shape);
  }
  if (!call.given(kZloss)) call[kZloss].tensor = contiguous_tensor(input.dtype, loss);
  if (!call.given(kLse)) call[kLse].tensor = contiguous_tensor(input.dtype, {rows});
}

// From the losses and lse of the rows: what they are added up to, and zloss.
struct Reducing {
  int64_t rows;
  kernels::Reduction reduction;
  double scale;
  bool has_lse, has_zloss;

  template <class W>
  void run(const kernels::Targets& targets, const W* weight, const double* of_rows, const double* lse, double* loss,
           double* zloss) const {
    const FixedFpEnvironment environment;
    const bool is_none = reduction == kernels::Reduction::kNone, is_mean = reduction == kernels::Reduction::kMean;
    double sum = 0, sum_of_zloss = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const bool counts = has_lse && targets.of(row) != kernels::Targets::kIgnored;
      const double z = counts ? scale * lse[row] * lse[row] : 0;
      if (is_none) loss[row] = of_rows[row] + z;
      if (is_none && has_zloss) zloss[row] = z;
      sum += of_rows[row];
      sum_of_zloss += z;
    }
    if (is_none) return;
    if (is_mean) {
      const kernels::Counted counted = kernels::count_targets(targets, rows, weight);
      sum /= counted.weight;
      sum_of_zloss /= counted.rows;
    }
    *loss = scale != 0 ? sum + sum_of_zloss : sum;
    if (has_zloss) *zloss = sum_of_zloss;
  }
};

template <class T>
void plan_kernel(const Call& call, Plan& plan) {
  using W = kernels::Wide<T>;
  const int64_t rows = call[kInput].tensor.shape[0], columns = call[kInput].tensor.shape[1];
  const bool has_log_prob = computes(call, kLogProb), has_lse = computes(call, kLse),
             has_zloss = computes(call, kZloss);
  const double scale = call.on_host() ? call[kZlossScale].real : 0, smoothing = call[kLabelSmoothing].real;
  const bool needs_lse = has_lse || has_zloss || scale != 0;
  const StagedRows x = stage_rows(call, plan, kInput, 1, columns, kElementOf<T>);
  const StagedTargets targets = stage_targets(call, kParameters);
  const auto weight = stage_weight<W>(call, plan, kWeight);
  const Place of_rows = plan.scratch(rows, sizeof(double));
  const auto numbers = [&](int i) { return StagedOutput::vector(call, plan, i, kernels::Element::kFloat64); };
  const StagedOutput loss = numbers(kLoss);
  const StagedOutput log_prob =
      has_log_prob ? StagedOutput::rows(call, plan, kLogProb, 1, columns, kElementOf<T>) : StagedOutput();
  const StagedOutput lse = has_lse ? numbers(kLse) : StagedOutput();
  const StagedOutput zloss = has_zloss ? numbers(kZloss) : StagedOutput();
  const Place to_lse = has_lse || !needs_lse ? lse.place() : plan.scratch(rows, sizeof(double));
  plan.step(
      "cross_entropy_loss", (has_log_prob ? 2.0 : 1.0) * rows * columns * sizeof(T),
      [=, log_prob = log_prob.staged()](const Addresses& a) {
        kernels::cross_entropy_loss<T>({.rows = rows,
                                        .columns = columns,
                                        .x = x.at<const T>(a),
                                        .targets = targets.at(a),
                                        .weight = weight.at(a),
                                        .smoothing = smoothing,
                                        .log_prob = has_log_prob ? log_prob.at<T>(a) : kernels::Rows<T>{nullptr, 0},
                                        .loss = a.at<double>(of_rows),
                                        .lse = needs_lse ? a.at<double>(to_lse) : nullptr});
      });
  const Reducing reducing{rows, reduction_of(call, kReduction), scale, needs_lse, has_zloss};
  plan.step("reduce", 16.0 * rows, [=, to = loss.place(), to_zloss = zloss.place()](const Addresses& a) {
    reducing.run(targets.at(a), weight.at(a), a.at<const double>(of_rows), a.at<const double>(to_lse), a.at<double>(to),
                 a.at<double>(to_zloss));
  });
  loss.finish(call, plan);
  if (has_log_prob) log_prob.finish(call, plan);
  if (has_lse) lse.finish(call, plan);
  if (has_zloss) zloss.finish(call, plan);
}

Status validate_and_plan(const Call& call, Plan* plan) {
  DESCEND_RETURN_IF_ERROR(check_cross_entropy(call, kParameters));
  DESCEND_RETURN_IF_ERROR(check_loss_shape(call, kParameters, kLoss, Code::kParamInvalid));
  if (computes(call, kLogProb)) DESCEND_RETURN_IF_ERROR(check_same_shape(call, kLogProb, kInput));
  if (computes(call, kZloss)) DESCEND_RETURN_IF_ERROR(check_loss_shape(call, kParameters, kZloss, Code::kParamInvalid));
  if (computes(call, kLse)) DESCEND_RETURN_IF_ERROR(check_row_numbers(call, kParameters, kLse, Code::kParamInvalid));
  if (plan == nullptr) return {};
  const auto element = element_of_scores(call, kParameters, computes(call, kLogProb) ? kLogProb : -1);
  with_element_type(element, [&]<class T>(T) { plan_kernel<T>(call, *plan); });
  return {};
}

}  // namespace

extern const Operator cross_entropy_loss{
    .name = "cross_entropy_loss",
    .c_name = "aclnnCrossEntropyLoss",
    .summary =
        "Cross entropy of scores with the class of each row: log softmax and the negative log likelihood in one.",
    .formula =
        "lse[n]        = log(sum over c of exp(input[n, c]))\n"
        "logProb[n, c] = input[n, c] - lse[n]\n"
        "loss[n]       = -(1 - s) * weight[t] * logProb[n, t] - s / C * sum over c of weight[c] * logProb[n, c]\n"
        "zloss[n]      = scale * lse[n]^2              t = target[n], s = labelSmoothing; of rows that are ignored 0\n"
        "mean: sum of loss / sum of weight[t], sum of zloss / rows that count; sum: their sums; none: as they are",
    .source = "aclnnCrossEntropyLoss",
    .notes =
        "A row whose target is ignoreIndex is ignored, whatever sign that has; one whose target is no class gets NaN. "
        "lossOut may also have rank 0 where it is reduced. zloss is for host alone, where a scale other than 0 adds it "
        "to loss: zlossOut is written where returnZloss is true, lseForZlossOut where the scale is not 0. On Atlas "
        "products both must be given, are not written, and may have any shape. On host null is taken for logProbOut, "
        "zlossOut and lseForZlossOut. Without logProbOut lseForZlossOut is written whatever the scale, and rows that "
        "are ignored are not read: their lse is 0. host also takes DOUBLE and any mix of floating dtypes.",
    .products = kCrossEntropyProducts,
    .parameters = {input_of("input", "[N, C]", "Scores of each class, not normalized."),
                   input_of("target", "[N]", "The class of each row, from 0 to C - 1, or ignoreIndex."),
                   {"weightOptional", "weight", Kind::kTensor, Role::kInput, true, "None", false, "[C]",
                    "Weight of each class; null: all are 1."},
                   reduction_parameter(),
                   ignore_index_parameter(),
                   label_smoothing_parameter(),
                   zloss_scale_parameter(),
                   {"returnZloss", "return_zloss", Kind::kBool, Role::kAttribute, false, "False", false, "",
                    "Whether zlossOut is written, on host."},
                   output_of("lossOut", "loss_out", "[1], or [N] for none", "The loss."),
                   {.name = "logProbOut",
                    .python = "log_prob_out",
                    .kind = Kind::kTensor,
                    .role = Role::kOutput,
                    .optional = false,
                    .default_value = nullptr,
                    .keyword_only = false,
                    .shape = "as input",
                    .description = "Logarithms of the probabilities, for the gradient.",
                    .optional_on_host = true},
                   {.name = "zlossOut",
                    .python = "zloss_out",
                    .kind = Kind::kTensor,
                    .role = Role::kOutput,
                    .optional = false,
                    .default_value = nullptr,
                    .keyword_only = false,
                    .shape = "[1], or [N] for none",
                    .description = "The part of the loss that keeps lse near 0.",
                    .optional_on_host = true},
                   {.name = "lseForZlossOut",
                    .python = "lse_for_zloss_out",
                    .kind = Kind::kTensor,
                    .role = Role::kOutput,
                    .optional = false,
                    .default_value = nullptr,
                    .keyword_only = false,
                    .shape = "[N]",
                    .description = "lse of each row, for the gradient.",
                    .optional_on_host = true}},
    .dtypes = cross_entropy_dtypes(7, 1, {Dtype::kInt32, Dtype::kInt64}),
    .errors =
        {{Code::kParamNullptr,
          "input, target, lossOut, logProbOut, zlossOut or lseForZlossOut is null; on host the last three may be"},
         {Code::kParamInvalid,
          "dtypes outside the table or different from each other; a private format; a view outside its storage; "
          "an output that overlaps another tensor other than exactly; shapes of the outputs"},
         {Code::kTilingError, "shapes of input, target and weightOptional; reductionOptional, labelSmoothing"},
         {Code::kFindKernelError, "the product has no such operator"}},
    .infer = infer,
    .validate_and_plan = validate_and_plan,
    .computes = computes,
    .const_outputs = true,
};

}  // namespace descend
