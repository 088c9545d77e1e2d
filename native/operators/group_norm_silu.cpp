// aclnnGroupNormSilu, and aclnnGroupNormSiluV2, whose flag says whether SiLU follows: contract and plan.
#include "operators/group_norm_plan.h"
#include "operators/group_norm_shape.h"

namespace descend {
namespace {

enum { kInput, kGamma, kBeta, kGroups, kEpsilon, kActivate };  // the flag is V2's alone

// The outputs come last.
int output(const Call& call, int i) { return static_cast<int>(call.op->parameters.size()) - 3 + i; }

std::span<const Operator* const> variants();

std::vector<DtypeRow> dtype_rows() {
  constexpr ProductSet kInference(Product::kAtlasInference), kAscend950(Product::kAscend950);
  constexpr ProductSet kOlder(Product::kAtlasA3, Product::kAtlasA2Training, Product::kAtlasA2Inference);
  constexpr DtypeSet kF32 = kFloat32Only, kF16{Dtype::kFloat16}, kBf16{Dtype::kBfloat16};
  const auto row = [](ProductSet products, DtypeSet x, DtypeSet parameter, DtypeSet statistic) {
    return DtypeRow{products, {x, parameter, parameter, x, statistic, statistic}};
  };
  return {row(kGroupNormProducts | kInference, kF32, kF32, kF32),
          row(kGroupNormProducts | kInference, kF16, kF16, kF16),
          row(kGroupNormProducts, kBf16, kBf16, kBf16),
          row(kOlder | kInference, kF16, kF32, kF16),
          row(kOlder, kBf16, kF32, kBf16),
          row(kAscend950, kF16, kF32, kF32),
          row(kAscend950, kBf16, kF32, kF32),
          row(ProductSet(Product::kHost), kAllFloats, kAllFloats, kAllFloats)};
}

void infer(Call& call) { infer_group_norm(call, kInput, kGroups, output(call, 0), output(call, 1), output(call, 2)); }

Status validate(const Call& call, kernels::GroupShape* shape) {
  const int out = output(call, 0), mean = output(call, 1), rstd = output(call, 2);
  DESCEND_RETURN_IF_ERROR(check_group_norm_epsilon(call, kEpsilon));
  DESCEND_RETURN_IF_ERROR(
      check_group_norm_shape(call, {kInput, kGamma, kBeta, kGroups, mean, rstd, Code::kParamInvalid}, shape));
  DESCEND_RETURN_IF_ERROR(check_same_shape(call, out, kInput));
  if (call.on_host()) return {};
  DESCEND_RETURN_IF_ERROR(check_statistics_shape(call, mean, rstd, *shape));
  for (const int i : {out, mean, rstd}) DESCEND_RETURN_IF_ERROR(check_contiguous(call, i));
  const Dtype x = call[kInput].tensor.dtype, statistic = call[mean].tensor.dtype;
  if (call.given(kGamma) || call.given(kBeta) || x == statistic) return {};
  return call.fail(Code::kParamInvalid, call.name(mean), " has dtype ", dtype_name(statistic),
                   ", but without a weight and a bias it must have that of ", call.name(kInput), ", ", dtype_name(x),
                   ", on ", info(call.product).name, ".");
}

void make_plan(const Call& call, const kernels::GroupShape& shape, Plan& plan) {
  const bool activate = output(call, 0) == kActivate || call[kActivate].flag;
  plan_group_norm(
      call,
      {kInput, kGamma, kBeta, output(call, 0), output(call, 1), output(call, 2), call[kEpsilon].real, activate, 1},
      shape, plan);
}

}  // namespace

extern const Operator group_norm_silu{
    .name = "group_norm_silu",
    .c_name = "aclnnGroupNormSilu",
    .summary = "Group norm, then SiLU.",
    .formula =
        "mean, var = mean and biased variance of each group of self\n"
        "rstd      = 1 / sqrt(var + eps)\n"
        "z         = (self - mean) * rstd * gamma + beta\n"
        "out       = z / (1 + exp(-z))",
    .source = "aclnnGroupNormSilu",
    .notes =
        "self is seen as [N, C, HxW]: dimension 0 is N, dimension 1 is C, the rest HxW (1 if there is none); a group "
        "is C / group neighbouring channels of one sample. gamma null is all ones, beta null all zeros. Where mean "
        "and rstd are allocated they are FLOAT [N, group], DOUBLE for DOUBLE input. Strided inputs and empty tensors "
        "are fine; a group without elements has mean 0 and rstd NaN. Its gradient is GroupNormSwishGrad's with a "
        "swishScale of 1. host also takes DOUBLE, any mix of floating dtypes, strided outputs, mean and rstd of any "
        "shape, and an eps of 0.",
    .products = kGroupNormProductsAndHost | ProductSet(Product::kAtlasInference),
    .parameters = {{"self", "input", Kind::kTensor, Role::kInput, false, nullptr, false, "[N, C, ...], rank 2 to 8",
                    "What is normalised."},
                   optional(input_of("gamma", "[C]", "Weight; null: all ones.")),
                   optional(input_of("beta", "[C]", "Bias; null: all zeros.")),
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
                        "overlaps another tensor other than exactly; ranks and shapes; group not positive or no "
                        "divisor of C; eps not positive, on host a negative one; on every product but host a strided "
                        "output, and without gamma and beta statistics of another dtype than self"),
    .infer = infer,
    .validate_and_plan = validate_then_plan<kernels::GroupShape, validate, make_plan>,
    .variants = variants,
};

namespace {

std::span<const Operator* const> variants() {
  static const Operator second = [] {
    Operator op = group_norm_silu;
    op.variants = nullptr;
    op.name = "group_norm_silu_v2";
    op.c_name = "aclnnGroupNormSiluV2";
    op.summary = "The same, with SiLU or, where activateSilu is false, without.";
    op.source = op.c_name;
    op.parameters.insert(op.parameters.begin() + kActivate,
                         {"activateSilu", "activate_silu", Kind::kBool, Role::kAttribute, false, "True", false, "",
                          "Whether SiLU follows."});
    return op;
  }();
  static const Operator* const list[] = {&second};
  return list;
}

}  // namespace
}  // namespace descend
