// aclnnLayerNormBackward: contract and plan.
#include <algorithm>

#include "operators/layer_norm_shape.h"
#include "operators/row_operator.h"

namespace descend::kernels {
template <class T>
void layer_norm_backward(const RowProblem<Wide<T>>& problem, void* scratch);
}

namespace descend {
namespace {

enum {
  kGradOut,
  kInput,
  kNormalizedShape,
  kMean,
  kRstd,
  kWeight,
  kBias,
  kOutputMask,
  kGradInput,
  kGradWeight,
  kGradBias
};

constexpr uint64_t kOutputs = 3;

std::vector<DtypeRow> dtype_rows() {
  std::vector<DtypeRow> rows;
  for (const auto& [products, input, parameter, any] : layer_norm_dtypes()) {
    if (parameter != input) continue;  // FLOAT parameters beside 16-bit input are in the same row here
    rows.push_back({products, {input, input, any, any, parameter | kFloat32Only, any, any, any, any}});
  }
  return rows;
}

bool has_mask(const Call& call) { return call.given(kOutputMask) && call[kOutputMask].list.size() == kOutputs; }

// An output whose mask is false is ignored. While the mask is not valid, all outputs are.
bool counts(const Call& call, int i) {
  return i < kGradInput || (has_mask(call) && call[kOutputMask].list[i - kGradInput] != 0);
}

// bias is checked, but not read.
bool computes(const Call& call, int i) { return i != kBias && counts(call, i); }

void infer(Call& call) {
  const Tensor& input = call[kInput].tensor;
  if (!call.given(kGradInput)) call[kGradInput].tensor = contiguous_tensor(input.dtype, input.shape);
  const uint64_t k = normalized_dimensions(call, kInput, kNormalizedShape);
  const Dims normalized = input.shape.slice(input.rank() - k, input.rank());
  // The dtype of its parameter; if that is null, of the other; if both are, of the statistics.
  const auto gradient_of = [&](int parameter, int other, int output) {
    const Tensor* like = call.given(parameter) ? call.tensor(parameter) : call.tensor(other);
    const Dtype statistics = input.dtype == Dtype::kDouble ? Dtype::kDouble : Dtype::kFloat;
    if (!call.given(output)) call[output].tensor = contiguous_tensor(like ? like->dtype : statistics, normalized);
  };
  gradient_of(kWeight, kBias, kGradWeight);
  gradient_of(kBias, kWeight, kGradBias);
}

Status validate_first(const Call& call) {
  if (has_mask(call)) return {};
  return call.fail(Code::kParamInvalid, call.name(kOutputMask), " has length ", call[kOutputMask].list.size(),
                   ", but must have length ", kOutputs, ", an entry for each output.");
}

Status validate(const Call& call, RowShape* shape) {
  DESCEND_RETURN_IF_ERROR(check_same_shape(call, kGradOut, kInput));
  DESCEND_RETURN_IF_ERROR(
      check_layer_norm_shape(call, {kInput, kNormalizedShape, kWeight, kBias, kMean, kRstd}, shape));
  DESCEND_RETURN_IF_ERROR(check_same_shape(call, kRstd, kMean));
  if (counts(call, kGradInput)) DESCEND_RETURN_IF_ERROR(check_same_shape(call, kGradInput, kInput));
  for (int i : {kGradWeight, kGradBias}) {
    if (!counts(call, i) || call[i].tensor.elements() == shape->columns) continue;
    return call.fail(Code::kParamInvalid, call.name(i), " has shape ", to_string(call[i].tensor.shape),
                     ", but must have as many elements as ", call.name(kNormalizedShape), ", ",
                     to_string(call[kNormalizedShape].list), ".");
  }
  const bool both = counts(call, kGradWeight) && counts(call, kGradBias);
  return both ? check_same_shape(call, kGradBias, kGradWeight) : Status{};
}

const RowOperands& parts() {
  static const RowOperands at{kInput,         {kGradOut, kInput}, {kWeight},
                              {kMean, kRstd}, {kGradInput},       {kGradWeight, kGradBias}};
  return at;
}

void make_plan(const Call& call, const RowShape& shape, Plan& plan) {
  const Dims& mask = call[kOutputMask].list;
  if (shape.columns == 0 || std::none_of(mask.begin(), mask.end(), [](int64_t wanted) { return wanted != 0; })) return;
  with_element_type(row_element(call, parts()), [&]<class T>(T) {
    plan_row_operator<T>(call, parts(), shape, kernels::layer_norm_backward<T>, plan);
  });
}

}  // namespace

extern const Operator layer_norm_backward{
    .name = "layer_norm_backward",
    .c_name = "aclnnLayerNormBackward",
    .summary = "Gradients of layer norm with respect to its input, its weight and its bias.",
    .formula =
        "xhat       = (input - mean) * rstd\n"
        "g          = gradOut * weight\n"
        "gradInput  = rstd * (g - mean(g over the row) - xhat * mean(g * xhat over the row))\n"
        "gradWeight = sum over rows of gradOut * xhat\n"
        "gradBias   = sum over rows of gradOut",
    .source = "aclnnLayerNormBackward",
    .notes =
        "normalizedShape is the last dimensions of input, and everything is a matrix [M, N]: N its product, M rows. "
        "Without weight g is gradOut; bias is not read. An output whose mask is false is ignored altogether: it may "
        "be null, is not touched, and the functional form returns None for it. Results are computed once and rounded "
        "once, in each output's own dtype; where they are allocated, gradWeight and gradBias have the dtypes of "
        "weight and bias (of the other where there is only one, else FLOAT, DOUBLE for DOUBLE input). Strided and "
        "empty tensors are fine: without rows gradWeight and gradBias are 0. ascend-950 is as atlas-a3: the errors "
        "that "
        "the page aclnnLayerNormBackward of the public repository cann/ops-nn lists are the same for both. host also "
        "takes DOUBLE and any mix of "
        "floating dtypes.",
    .products = kLayerNormProducts,
    .parameters =
        {
            {"gradOut", "grad_out", Kind::kTensor, Role::kInput, false, nullptr, false, "as input",
             "Gradient of the loss with respect to the forward's output."},
            {"input", "input", Kind::kTensor, Role::kInput, false, nullptr, false,
             "[A1, ..., Ai, R1, ..., Rk], rank 1 to 8", "Input of the forward."},
            {"normalizedShape", "normalized_shape", Kind::kIntArray, Role::kAttribute, false, nullptr, false, "",
             "[R1, ..., Rk], 1 to 8 numbers."},
            {"mean", "mean", Kind::kTensor, Role::kInput, false, nullptr, false,
             "M elements, usually [A1, ..., Ai, 1, ..., 1]", "Mean of each row, from the forward."},
            {"rstd", "rstd", Kind::kTensor, Role::kInput, false, nullptr, false, "as mean",
             "1 / sqrt(variance + eps) of each row, from the forward."},
            {"weightOptional", "weight", Kind::kTensor, Role::kInput, true, "None", false, "[R1, ..., Rk]",
             "Weight of the forward; null: all ones."},
            {"biasOptional", "bias", Kind::kTensor, Role::kInput, true, "None", false, "[R1, ..., Rk]",
             "Bias of the forward; not read."},
            {"outputMask", "output_mask", Kind::kBoolArray, Role::kAttribute, false, "(True, True, True)", false, "",
             "Which of the three outputs are computed."},
            {"gradInputOut", "grad_input_out", Kind::kTensor, Role::kOutput, false, nullptr, false, "as input",
             "Gradient with respect to input.", false, true},
            {"gradWeightOut", "grad_weight_out", Kind::kTensor, Role::kOutput, false, nullptr, false,
             "N elements, usually [R1, ..., Rk]", "Gradient with respect to weight.", false, true},
            {"gradBiasOut", "grad_bias_out", Kind::kTensor, Role::kOutput, false, nullptr, false, "as gradWeightOut",
             "Gradient with respect to bias.", false, true},
        },
    .dtypes = dtype_rows(),
    .errors =
        {
            {Code::kParamNullptr,
             "gradOut, input, normalizedShape, mean, rstd or outputMask is null; an output whose mask is true is null"},
            {Code::kParamInvalid,
             "an outputMask that has not 3 entries, which is looked at before any output; a dtype that no row of the "
             "table has in that place; a combination that is no row; a private format; a view outside its storage; an "
             "output that overlaps another tensor other than exactly; normalizedShape of no or more than 8 numbers or "
             "not the last dimensions of input; shapes that do not match"},
            {Code::kFindKernelError, "the product has no such operator"},
        },
    .infer = infer,
    .validate_and_plan = validate_then_plan<RowShape, validate, make_plan>,
    .counts = counts,
    .computes = computes,
    .validate_first = validate_first,
};

}  // namespace descend
