// aclnnLayerNorm: contract and plan.
#include <algorithm>

#include "operators/layer_norm_shape.h"
#include "operators/layer_norm_variants.h"
#include "operators/row_operator.h"

namespace descend::kernels {
template <class T>
void layer_norm(const RowProblem<Wide<T>>& problem, void* scratch);
}

namespace descend {
namespace {

enum { kInput, kNormalizedShape, kWeight, kBias, kEpsilon, kOut, kMean, kRstd };

std::vector<DtypeRow> dtype_rows() {
  std::vector<DtypeRow> rows;
  for (const auto& [products, input, parameter, any] : layer_norm_dtypes()) {
    rows.push_back({products, {input, parameter, parameter, input, any, any}});
  }
  return rows;
}

void infer(Call& call) {
  const Tensor& input = call[kInput].tensor;
  if (!call.given(kOut)) call[kOut].tensor = contiguous_tensor(input.dtype, input.shape);
  const uint64_t k = normalized_dimensions(call, kInput, kNormalizedShape);
  Dims shape = input.shape;
  std::fill(shape.data() + (shape.size() - k), shape.data() + shape.size(), 1);
  const Dtype wide = input.dtype == Dtype::kDouble ? Dtype::kDouble : Dtype::kFloat;
  for (int i : {kMean, kRstd}) {
    if (!call.given(i)) call[i].tensor = contiguous_tensor(wide, shape);
  }
}

Status validate(const Call& call, RowShape* shape) {
  DESCEND_RETURN_IF_ERROR(
      check_layer_norm_shape(call, {kInput, kNormalizedShape, kWeight, kBias, kMean, kRstd}, shape));
  DESCEND_RETURN_IF_ERROR(check_same_shape(call, kOut, kInput));
  return check_epsilon(call, kEpsilon, Code::kParamInvalid);
}

const RowOperands& parts() {
  static const RowOperands at{.x = kInput,
                              .inputs = {kInput},
                              .parameters = {kWeight, kBias},
                              .results = {kOut},
                              .statistics = {kMean, kRstd},
                              .scalars = {kEpsilon}};
  return at;
}

void make_plan(const Call& call, const RowShape& shape, Plan& plan) {
  if (shape.rows == 0) return;
  with_element_type(row_element(call, parts()),
                    [&]<class T>(T) { plan_row_operator<T>(call, parts(), shape, kernels::layer_norm<T>, plan); });
}

}  // namespace

extern const Operator layer_norm{
    .name = "layer_norm",
    .c_name = "aclnnLayerNorm",
    .summary = "Layer norm: each row less its mean, divided by its standard deviation, times a weight, plus a bias.",
    .formula =
        "mean, var = mean and biased variance of each row\n"
        "rstd      = 1 / sqrt(var + eps)\n"
        "out       = (input - mean) * rstd * weight + bias",
    .source = "aclnnLayerNorm",
    .notes =
        "normalizedShape is the last dimensions of input, and everything is a matrix [M, N]: N its product, M rows. "
        "The variance does not cancel, however far from 0 the data lies. Where mean and rstd are allocated they are "
        "FLOAT, DOUBLE for DOUBLE input, and have input's rank with 1 for each dimension of normalizedShape. Strided "
        "and empty tensors are fine; a row without elements has mean 0 and rstd NaN. ascend-950 is as atlas-a3, by the "
        "page aclnnLayerNorm of the public repository cann/ops-nn. host also takes DOUBLE and any "
        "mix of floating dtypes.",
    .products = kLayerNormProducts,
    .parameters =
        {
            {"input", "input", Kind::kTensor, Role::kInput, false, nullptr, false,
             "[A1, ..., Ai, R1, ..., Rk], rank 1 to 8", "What is normalised."},
            {"normalizedShape", "normalized_shape", Kind::kIntArray, Role::kAttribute, false, nullptr, false, "",
             "[R1, ..., Rk], 1 to 8 numbers."},
            {"weightOptional", "weight", Kind::kTensor, Role::kInput, true, "None", false, "[R1, ..., Rk]",
             "Weight; null: all ones."},
            {"biasOptional", "bias", Kind::kTensor, Role::kInput, true, "None", false, "[R1, ..., Rk]",
             "Bias; null: all zeros."},
            {"eps", "eps", Kind::kFloat, Role::kAttribute, false, "1e-05", false, "",
             "Added to the variance; at least 0."},
            {"out", "out", Kind::kTensor, Role::kOutput, false, nullptr, false, "as input", "The result."},
            {"meanOutOptional", "mean_out", Kind::kTensor, Role::kOutput, true, nullptr, false,
             "M elements, usually [A1, ..., Ai, 1, ..., 1]",
             "Mean of each row, which the gradient needs; may be null."},
            {"rstdOutOptional", "rstd_out", Kind::kTensor, Role::kOutput, true, nullptr, false,
             "M elements, usually [A1, ..., Ai, 1, ..., 1]",
             "1 / sqrt(variance + eps) of each row, which the gradient needs; may be null."},
        },
    .dtypes = dtype_rows(),
    .errors =
        {
            {Code::kParamNullptr, "input, normalizedShape or out is null"},
            {Code::kParamInvalid,
             "a dtype that no row of the table has in that place; a combination that is no row; a private format; a "
             "view outside its storage; an output that overlaps another tensor other than exactly; normalizedShape of "
             "no or more than 8 numbers or not the last dimensions of input; shapes that do not match; a negative eps"},
            {Code::kFindKernelError, "the product has no such operator"},
        },
    .infer = infer,
    .validate_and_plan = validate_then_plan<RowShape, validate, make_plan>,
    .variants = layer_norm_variants,
};

}  // namespace descend
