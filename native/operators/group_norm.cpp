// aclnnGroupNorm: contract and plan.
#include "operators/group_norm_plan.h"
#include "operators/group_norm_shape.h"

namespace descend {
namespace {

enum { kInput, kGamma, kBeta, kSamples, kChannels, kInner, kGroups, kEpsilon, kOut, kMean, kRstd };

constexpr ProductSet kWithoutBfloat16(Product::kAtlasInference, Product::kAtlasTraining);

std::vector<DtypeRow> dtype_rows() {
  const auto row = [](ProductSet products, DtypeSet d) { return DtypeRow{products, {d, d, d, d, d, d}}; };
  return {row(kGroupNormProducts | kWithoutBfloat16, kFloat32Only),
          row(kGroupNormProducts | kWithoutBfloat16, DtypeSet{Dtype::kFloat16}),
          row(kGroupNormProducts, DtypeSet{Dtype::kBfloat16}), row(ProductSet(Product::kHost), kAllFloats)};
}

void infer(Call& call) { infer_group_norm(call, kInput, kGroups, kOut, kMean, kRstd); }

Status validate(const Call& call, kernels::GroupShape* shape) {
  const auto invalid = [&](const auto&... parts) { return call.fail(Code::kParamInvalid, parts...); };
  DESCEND_RETURN_IF_ERROR(check_group_norm_epsilon(call, kEpsilon));
  DESCEND_RETURN_IF_ERROR(
      check_group_norm_shape(call, {kInput, kGamma, kBeta, kGroups, kMean, kRstd, Code::kParamInvalid}, shape));
  const Dims& x = call[kInput].tensor.shape;
  const Dims sizes{call[kSamples].integer, call[kChannels].integer, call[kInner].integer};
  if (sizes[0] != x[0] || sizes[1] != x[1] || !multiply_to(x.slice(2, x.size()), sizes[2])) {
    return invalid(call.name(kSamples), ", ", call.name(kChannels), " and ", call.name(kInner), " are ",
                   to_string(sizes), ", but ", call.name(kInput), " has shape ", to_string(x),
                   ": they must be its first two dimensions and the product of the rest.");
  }
  DESCEND_RETURN_IF_ERROR(check_same_shape(call, kOut, kInput));
  if (call.on_host()) return {};
  DESCEND_RETURN_IF_ERROR(check_statistics_shape(call, kMean, kRstd, *shape));
  if (call[kOut].tensor.format == call[kInput].tensor.format) return {};
  return invalid(call.name(kOut), " has format ", format_name(call[kOut].tensor.format), ", but must have that of ",
                 call.name(kInput), ", ", format_name(call[kInput].tensor.format), ", on ", info(call.product).name,
                 ".");
}

void make_plan(const Call& call, const kernels::GroupShape& shape, Plan& plan) {
  plan_group_norm(call, {kInput, kGamma, kBeta, kOut, kMean, kRstd, call[kEpsilon].real, false, 1}, shape, plan);
}

}  // namespace

extern const Operator group_norm{
    .name = "group_norm",
    .c_name = "aclnnGroupNorm",
    .summary = "Group norm: groups of channels less their mean, divided by their standard deviation.",
    .formula =
        "mean, var = mean and biased variance of each group of self\n"
        "rstd      = 1 / sqrt(var + eps)\n"
        "out       = (self - mean) * rstd * gamma + beta",
    .source = "aclnnGroupNorm",
    .notes =
        "self is seen as [N, C, HxW]; a group is C / group neighbouring channels of one sample. gamma null is all "
        "ones, beta null all zeros. The variance does not cancel, however far from 0 the data lies. Where mean and "
        "rstd are allocated they are FLOAT [N, group], DOUBLE for DOUBLE input. Strided and empty tensors are fine; a "
        "group without elements has mean 0 and rstd NaN. host also takes DOUBLE, any mix of floating dtypes, mean and "
        "rstd of any shape, and an eps of 0.",
    .products = kGroupNormProductsAndHost | kWithoutBfloat16,
    .parameters = {{"self", "input", Kind::kTensor, Role::kInput, false, nullptr, false, "[N, C, ...], rank 2 to 8",
                    "What is normalised."},
                   optional(input_of("gamma", "[C]", "Weight; null: all ones.")),
                   optional(input_of("beta", "[C]", "Bias; null: all zeros.")),
                   {"N", "n", Kind::kInt, Role::kAttribute, false, nullptr, false, "", "The samples."},
                   {"C", "c", Kind::kInt, Role::kAttribute, false, nullptr, false, "", "The channels."},
                   {"HxW", "hxw", Kind::kInt, Role::kAttribute, false, nullptr, false, "",
                    "The elements of a channel, 1 if there is no further dimension."},
                   {"group", "group", Kind::kInt, Role::kAttribute, false, nullptr, false, "",
                    "Groups that the channels fall into; divides C."},
                   number_of("eps", "1e-05", "Added to the variance; more than 0."),
                   output_of("out", "out", "as self", "The result."),
                   output_of("meanOut", "mean_out", "[N, group]", "Mean of each group, which the gradient needs."),
                   output_of("rstdOut", "rstd_out", "[N, group]",
                             "1 / sqrt(variance + eps) of each group, which the gradient needs.")},
    .dtypes = dtype_rows(),
    .errors = errors_of("self, out, meanOut or rstdOut is null",
                        "dtypes outside the table; a private format; a view outside its storage; an output that "
                        "overlaps another tensor other than exactly; ranks and shapes; N, C or HxW that are not those "
                        "of self; group not positive or no divisor of C; eps not positive, on host a negative one; on "
                        "every product but host an out of another format than self"),
    .infer = infer,
    .validate_and_plan = validate_then_plan<kernels::GroupShape, validate, make_plan>,
};

}  // namespace descend
