// aclnnGroupNormSwishGrad: contract and plan.
#include "operators/group_norm_plan.h"
#include "operators/group_norm_shape.h"

namespace descend {
namespace {

enum {
  kDy,
  kMean,
  kRstd,
  kX,
  kGamma,
  kBeta,
  kGroups,
  kFormat,
  kScale,
  kDgammaWanted,
  kDbetaWanted,
  kDx,
  kDgamma,
  kDbeta
};

constexpr int64_t kMostGroupChannels = 4000;  // on every product but host

std::vector<DtypeRow> dtype_rows() {
  std::vector<DtypeRow> rows;
  for (DtypeSet d : {DtypeSet{Dtype::kFloat}, DtypeSet{Dtype::kFloat16}, DtypeSet{Dtype::kBfloat16}}) {
    rows.push_back({kGroupNormProducts, {d, d, d, d, d, d, d, d, d}});
  }
  for (Dtype dtype : {Dtype::kFloat, Dtype::kFloat16, Dtype::kBfloat16, Dtype::kDouble}) {
    const DtypeSet d{dtype};
    rows.push_back({ProductSet(Product::kHost),
                    {d, kAllFloats, kAllFloats, d, kAllFloats, kAllFloats, kAllFloats, kAllFloats, kAllFloats}});
  }
  return rows;
}

void infer(Call& call) {
  const auto like = [&](int output, int input) {
    const Tensor& tensor = call[input].tensor;
    if (!call.given(output)) call[output].tensor = contiguous_tensor(tensor.dtype, tensor.shape);
  };
  like(kDx, kX);
  like(kDgamma, kGamma);
  like(kDbeta, kBeta);
}

bool computes(const Call& call, int i) {
  if (i == kDgamma) return call[kDgammaWanted].flag;
  if (i == kDbeta) return call[kDbetaWanted].flag;
  return true;
}

Status validate(const Call& call, kernels::GroupShape* shape) {
  DESCEND_RETURN_IF_ERROR(check_same_shape(call, kDy, kX, Code::kTilingError));
  DESCEND_RETURN_IF_ERROR(check_group_norm_shape(call, {kX, kGamma, kBeta, kGroups, kMean, kRstd}, shape));
  DESCEND_RETURN_IF_ERROR(check_same_shape(call, kDx, kX, Code::kTilingError));
  DESCEND_RETURN_IF_ERROR(check_same_shape(call, kDgamma, kGamma, Code::kTilingError));
  DESCEND_RETURN_IF_ERROR(check_same_shape(call, kDbeta, kBeta, Code::kTilingError));
  if (call.on_host()) return {};
  if (shape->inner == 0) {
    return call.fail(Code::kTilingError, call.name(kX), " has shape ", to_string(call[kX].tensor.shape),
                     ", but must not be empty on ", info(call.product).name, ".");
  }
  if (shape->group_channels() > kMostGroupChannels) {
    return call.fail(Code::kTilingError, call.name(kGroups), " is ", shape->groups, " for ", shape->channels,
                     " channels, which makes ", shape->group_channels(), " a group, but there must be at most ",
                     kMostGroupChannels, " on ", info(call.product).name, ".");
  }
  return {};
}

void make_plan(const Call& call, const kernels::GroupShape& shape, Plan& plan) {
  plan_group_norm_gradient(call, {kDy, kX, kMean, kRstd, kGamma, kBeta, call[kScale].real, kDx, kDgamma, kDbeta}, shape,
                           plan);
}

}  // namespace

extern const Operator group_norm_swish_grad{
    .name = "group_norm_swish_grad",
    .c_name = "aclnnGroupNormSwishGrad",
    .summary = "Gradients of group norm followed by swish, with respect to its input, weight and bias.",
    .formula =
        "xhat   = (x - mean) * rstd\n"
        "z      = xhat * gamma + beta\n"
        "sig    = 1 / (1 + exp(-swish_scale * z))\n"
        "dz     = dy * sig * (1 + swish_scale * z * (1 - sig))\n"
        "dbeta  = sum of dz over N and HxW\n"
        "dgamma = sum of dz * xhat over N and HxW\n"
        "dx     = rstd * (dz * gamma - mean(dz * gamma) - xhat * mean(dz * gamma * xhat)), means over the group",
    .source = "aclnnGroupNormSwishGrad",
    .notes =
        "x is seen as [N, C, HxW]: dimension 0 is N, dimension 1 is C, the rest HxW (1 if there is none); a group is "
        "C / num_groups neighbouring channels of one sample. Nothing overflows on the way to the sigmoid, however "
        "large swish_scale * z is. A gradient of gamma or beta that is not required is not computed: its tensor is "
        "checked, but not touched, and the functional form returns None for it. ascend-950 is as atlas-a3, by the page "
        "aclnnGroupNormSwishGrad of the public repository cann/ops-nn. host also takes DOUBLE, any mix of "
        "floating dtypes for mean, rstd, gamma, beta and the outputs, empty tensors (dgamma and dbeta are then 0), "
        "and groups of more than 4000 channels.",
    .products = kGroupNormProductsAndHost,
    .parameters =
        {
            {"dy", "dy", Kind::kTensor, Role::kInput, false, nullptr, false, "as x",
             "Gradient of the loss with respect to the forward's output."},
            {"mean", "mean", Kind::kTensor, Role::kInput, false, nullptr, false, "N * num_groups elements",
             "Mean of each group, from the forward."},
            {"rstd", "rstd", Kind::kTensor, Role::kInput, false, nullptr, false, "N * num_groups elements",
             "1 / sqrt(variance + eps) of each group, from the forward."},
            {"x", "x", Kind::kTensor, Role::kInput, false, nullptr, false, "[N, C, ...], rank 2 to 8",
             "Input of the forward."},
            {"gamma", "gamma", Kind::kTensor, Role::kInput, false, nullptr, false, "[C]", "Weight of the forward."},
            {"beta", "beta", Kind::kTensor, Role::kInput, false, nullptr, false, "[C]", "Bias of the forward."},
            {"numGroups", "num_groups", Kind::kInt, Role::kAttribute, false, nullptr, false, "",
             "Groups that the channels fall into; divides C."},
            {"dataFormatOptional", "data_format", Kind::kString, Role::kAttribute, true, "\"NCHW\"", false, "",
             "Not read."},
            {"swishScale", "swish_scale", Kind::kFloat, Role::kAttribute, false, "1.0", false, "",
             "What z is multiplied by in the sigmoid."},
            {"dgammaIsRequire", "dgamma_is_require", Kind::kBool, Role::kAttribute, false, "True", false, "",
             "Whether the gradient of gamma is computed."},
            {"dbetaIsRequire", "dbeta_is_require", Kind::kBool, Role::kAttribute, false, "True", false, "",
             "Whether the gradient of beta is computed."},
            {"dxOut", "dx_out", Kind::kTensor, Role::kOutput, false, nullptr, false, "as x",
             "Gradient with respect to x."},
            {"dgammaOut", "dgamma_out", Kind::kTensor, Role::kOutput, false, nullptr, false, "[C]",
             "Gradient with respect to gamma."},
            {"dbetaOut", "dbeta_out", Kind::kTensor, Role::kOutput, false, nullptr, false, "[C]",
             "Gradient with respect to beta."},
        },
    .dtypes = dtype_rows(),
    .errors =
        {
            {Code::kParamNullptr, "any of the nine tensors is null, whatever the flags"},
            {Code::kParamInvalid,
             "a dtype that no row of the table has in that place; a combination that is no row; a private format; a "
             "view outside its storage; an output that overlaps another tensor other than exactly"},
            {Code::kTilingError,
             "ranks and shapes; num_groups not positive or no divisor of C; on every product but host an "
             "empty tensor or more than 4000 channels a group"},
            {Code::kFindKernelError, "the product has no such operator"},
        },
    .infer = infer,
    .validate_and_plan = validate_then_plan<kernels::GroupShape, validate, make_plan>,
    .computes = computes,
    .const_outputs = true,
};

}  // namespace descend
