// aclnnGroupNormSwish: contract and plan.
#include "operators/group_norm_plan.h"
#include "operators/group_norm_shape.h"

namespace descend {
namespace {

enum { kX, kGamma, kBeta, kGroups, kFormat, kEpsilon, kActivate, kScale, kY, kMean, kRstd };

std::vector<DtypeRow> dtype_rows() {
  std::vector<DtypeRow> rows;
  const DtypeSet f32{Dtype::kFloat}, f16{Dtype::kFloat16}, bf16{Dtype::kBfloat16};
  for (const auto& [x, gamma] : {std::pair{f32, f32}, {f16, f16}, {f16, f32}, {bf16, bf16}, {bf16, f32}}) {
    rows.push_back({kGroupNormProducts, {x, gamma, gamma, x, gamma, gamma}});
  }
  rows.push_back(
      {ProductSet(Product::kHost), {kAllFloats, kAllFloats, kAllFloats, kAllFloats, kAllFloats, kAllFloats}});
  return rows;
}

void infer(Call& call) { infer_group_norm(call, kX, kGroups, kY, kMean, kRstd); }

Status validate(const Call& call, kernels::GroupShape* shape) {
  if (!(call[kEpsilon].real >= 0)) {
    return call.fail(Code::kTilingError, call.name(kEpsilon), " is ", call[kEpsilon].real,
                     ", but must be 0 or greater.");
  }
  DESCEND_RETURN_IF_ERROR(check_group_norm_shape(call, {kX, kGamma, kBeta, kGroups, kMean, kRstd}, shape));
  return check_same_shape(call, kY, kX, Code::kTilingError);
}

void make_plan(const Call& call, const kernels::GroupShape& shape, Plan& plan) {
  plan_group_norm(call,
                  {kX, kGamma, kBeta, kY, kMean, kRstd, call[kEpsilon].real, call[kActivate].flag, call[kScale].real},
                  shape, plan);
}

}  // namespace

extern const Operator group_norm_swish{
    .name = "group_norm_swish",
    .c_name = "aclnnGroupNormSwish",
    .summary = "Group norm, then swish: z * sigmoid(swish_scale * z).",
    .formula =
        "mean, var = mean and biased variance of each group of x\n"
        "rstd = 1 / sqrt(var + eps)\n"
        "z    = (x - mean) * rstd * gamma + beta\n"
        "y    = z / (1 + exp(-swish_scale * z)) if activate_swish else z",
    .source = "aclnnGroupNormSwish",
    .notes =
        "x is seen as [N, C, HxW]: dimension 0 is N, dimension 1 is C, the rest HxW (1 if there is none); a group is "
        "C / num_groups neighbouring channels of one sample. The variance does not cancel, however far from 0 the "
        "data lies. Where mean and rstd are allocated they are FLOAT [N, num_groups], DOUBLE for DOUBLE input. "
        "Strided and empty tensors are fine; a group without elements has mean 0 and rstd NaN. ascend-950 is as "
        "atlas-a3, by the page aclnnGroupNormSwish of the public repository cann/ops-nn. host also takes "
        "DOUBLE and any mix of floating dtypes.",
    .products = kGroupNormProductsAndHost,
    .parameters =
        {
            {"x", "x", Kind::kTensor, Role::kInput, false, nullptr, false, "[N, C, ...], rank 2 to 8",
             "What is normalised."},
            {"gamma", "gamma", Kind::kTensor, Role::kInput, false, nullptr, false, "[C]", "Weight."},
            {"beta", "beta", Kind::kTensor, Role::kInput, false, nullptr, false, "[C]", "Bias."},
            {"numGroups", "num_groups", Kind::kInt, Role::kAttribute, false, nullptr, false, "",
             "Groups that the channels fall into; divides C."},
            {"dataFormatOptional", "data_format", Kind::kString, Role::kAttribute, true, "\"NCHW\"", false, "",
             "Not read."},
            {"eps", "eps", Kind::kFloat, Role::kAttribute, false, "1e-05", false, "",
             "Added to the variance; at least 0."},
            {"activateSwish", "activate_swish", Kind::kBool, Role::kAttribute, false, "True", false, "",
             "Whether swish follows."},
            {"swishScale", "swish_scale", Kind::kFloat, Role::kAttribute, false, "1.0", false, "",
             "What z is multiplied by in the sigmoid."},
            {"yOut", "y_out", Kind::kTensor, Role::kOutput, false, nullptr, false, "as x", "The result."},
            {"meanOut", "mean_out", Kind::kTensor, Role::kOutput, false, nullptr, false, "N * num_groups elements",
             "Mean of each group, which the gradient needs."},
            {"rstdOut", "rstd_out", Kind::kTensor, Role::kOutput, false, nullptr, false, "N * num_groups elements",
             "1 / sqrt(variance + eps) of each group, which the gradient needs."},
        },
    .dtypes = dtype_rows(),
    .errors =
        {
            {Code::kParamNullptr, "any of the six tensors is null"},
            {Code::kParamInvalid,
             "a dtype that no row of the table has in that place; a combination that is no row; a private format; a "
             "view outside its storage; an output that overlaps another tensor other than exactly"},
            {Code::kTilingError, "ranks and shapes; num_groups not positive or no divisor of C; a negative eps"},
            {Code::kFindKernelError, "the product has no such operator"},
        },
    .infer = infer,
    .validate_and_plan = validate_then_plan<kernels::GroupShape, validate, make_plan>,
    .const_outputs = true,
};

}  // namespace descend
