// aclnnGroupNormSwish: contract and plan.
#include "kernels/group_norm_swish.h"

#include "operators/group_norm_shape.h"
#include "operators/staging.h"

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

void infer(Call& call) {
  const Tensor& x = call[kX].tensor;
  if (!call.given(kY)) call[kY].tensor = contiguous_tensor(x.dtype, x.shape);
  const Dtype wide = x.dtype == Dtype::kDouble ? Dtype::kDouble : Dtype::kFloat;
  const int64_t samples = x.rank() > 0 ? x.shape[0] : 0, groups = std::max<int64_t>(call[kGroups].integer, 0);
  for (int i : {kMean, kRstd}) {
    if (!call.given(i)) call[i].tensor = contiguous_tensor(wide, {samples, groups});
  }
}

Status validate(const Call& call, kernels::GroupShape* shape) {
  if (!(call[kEpsilon].real >= 0)) {
    return call.fail(Code::kTilingError, call.name(kEpsilon), " is ", call[kEpsilon].real,
                     ", but must be 0 or greater.");
  }
  DESCEND_RETURN_IF_ERROR(check_group_norm_shape(call, {kX, kGamma, kBeta, kGroups, kMean, kRstd}, shape));
  return check_same_shape(call, kY, kX, Code::kTilingError);
}

template <class T>
void plan_kernel(const Call& call, const kernels::GroupShape& shape, Plan& plan) {
  using W = kernels::Wide<T>;
  const int64_t columns = shape.channels * shape.inner;
  const FoldedSamples folded = fold_samples(shape, kernels::kForwardTile);
  StagedRows x = stage_rows(call, plan, kX, folded.leading(), columns, kElementOf<T>);
  const Place gamma = stage_vector(call, plan, kGamma, kElementOf<W>);
  const Place beta = stage_vector(call, plan, kBeta, kElementOf<W>);
  const StagedOutput y = StagedOutput::rows(call, plan, kY, folded.leading(), columns, kElementOf<T>);
  const StagedOutput mean = StagedOutput::vector(call, plan, kMean, kElementOf<W>);
  const StagedOutput rstd = StagedOutput::vector(call, plan, kRstd, kElementOf<W>);
  StagedRows y_rows = y.staged();
  if (folded.times > 1) x.stride = y_rows.stride = columns;
  const auto& [times, main, rest] = folded;
  const Place repeated = plan.scratch(times > 1 ? 2 * main.channels : 0, sizeof(W));
  const Place scratch =
      plan.scratch(std::max(kernels::group_norm_swish_scratch<T>(main), kernels::group_norm_swish_scratch<T>(rest)));
  plan.step(
      "group_norm_swish", 2.0 * shape.elements() * sizeof(T),
      [=, epsilon = call[kEpsilon].real, activate = call[kActivate].flag, scale = swish_scale<W>(call[kScale].real),
       mean_place = mean.place(), rstd_place = rstd.place()](const Addresses& addresses) {
        kernels::GroupNormSwish<T> p{.shape = folded.rest,
                                     .x = x.at<const T>(addresses),
                                     .gamma = addresses.at<const W>(gamma),
                                     .beta = addresses.at<const W>(beta),
                                     .epsilon = epsilon,
                                     .activate = activate,
                                     .scale = scale,
                                     .y = y_rows.at<T>(addresses),
                                     .mean = addresses.at<W>(mean_place),
                                     .rstd = addresses.at<W>(rstd_place)};
        kernels::GroupNormSwish<T> several = p;
        several.shape = folded.main;
        if (folded.times > 1) {
          repeat_parameters(folded, addresses.at<W>(repeated), several.gamma, several.beta);
          several.x.stride = several.y.stride = folded.times * columns;
        }
        void* const memory = addresses.at<void>(scratch);
        kernels::group_norm_swish<T>(several, memory);
        if (folded.rest.samples == 0) return;
        p.x.data = p.x.row(folded.main_samples());
        p.y.data = p.y.row(folded.main_samples());
        p.mean += folded.main_samples() * shape.groups;
        p.rstd += folded.main_samples() * shape.groups;
        kernels::group_norm_swish<T>(p, memory);
      });
  y.finish(call, plan);
  mean.finish(call, plan);
  rstd.finish(call, plan);
}

void make_plan(const Call& call, const kernels::GroupShape& shape, Plan& plan) {
  if (shape.samples == 0) return;
  with_element_type(kernel_element(call, kX, {kY}), [&]<class T>(T) { plan_kernel<T>(call, shape, plan); });
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
