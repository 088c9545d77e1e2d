// aclnnGroupNormSwishGrad: contract and plan.
#include "kernels/group_norm_swish_grad.h"

#include "operators/group_norm_shape.h"
#include "operators/staging.h"

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

template <class T>
void plan_kernel(const Call& call, const kernels::GroupShape& shape, Plan& plan) {
  using W = kernels::Wide<T>;
  const int64_t columns = shape.channels * shape.inner;
  const FoldedSamples folded = fold_samples(shape, kernels::kSmallTile);
  StagedRows dy = stage_rows(call, plan, kDy, folded.leading(), columns, kElementOf<T>);
  StagedRows x = stage_rows(call, plan, kX, folded.leading(), columns, kElementOf<T>);
  // If groups have no elements, nothing is read.
  const auto vector = [&](int i) { return shape.inner == 0 ? Place{} : stage_vector(call, plan, i, kElementOf<W>); };
  const Place mean = vector(kMean), rstd = vector(kRstd), gamma = vector(kGamma), beta = vector(kBeta);
  const StagedOutput dx = StagedOutput::rows(call, plan, kDx, folded.leading(), columns, kElementOf<T>);

  StagedRows dx_rows = dx.staged();
  if (folded.times > 1) dy.stride = x.stride = dx_rows.stride = columns;
  const auto& [times, main, rest] = folded;
  const int64_t main_slots = times * kernels::group_norm_swish_grad_slots<T>(main);
  const int64_t rest_slots = rest.samples > 0 ? kernels::group_norm_swish_grad_slots<T>(rest) : 0;
  const int64_t slots = shape.samples == 1 ? 0 : main_slots + rest_slots;
  StagedSums dgamma, dbeta;
  if (computes(call, kDgamma)) dgamma = StagedSums(call, plan, kDgamma, slots, shape.channels, kElementOf<T>);
  if (computes(call, kDbeta)) dbeta = StagedSums(call, plan, kDbeta, slots, shape.channels, kElementOf<T>);
  const Place repeated = plan.scratch(times > 1 ? 2 * main.channels : 0, sizeof(W));
  const Place scratch = plan.scratch(
      std::max(kernels::group_norm_swish_grad_scratch<T>(main), kernels::group_norm_swish_grad_scratch<T>(rest)));
  plan.step("group_norm_swish_grad", 3.0 * shape.elements() * sizeof(T),
            [=, scale = swish_scale<W>(call[kScale].real)](const Addresses& addresses) {
              kernels::GroupNormSwishGrad<T> p{.shape = folded.rest,
                                               .dy = dy.at<const T>(addresses),
                                               .x = x.at<const T>(addresses),
                                               .mean = addresses.at<const W>(mean),
                                               .rstd = addresses.at<const W>(rstd),
                                               .gamma = addresses.at<const W>(gamma),
                                               .beta = addresses.at<const W>(beta),
                                               .scale = scale,
                                               .dx = dx_rows.at<T>(addresses),
                                               .dgamma = dgamma.at<T>(addresses),
                                               .dbeta = dbeta.at<T>(addresses)};
              kernels::GroupNormSwishGrad<T> several = p;
              several.shape = folded.main;
              if (folded.times > 1) {
                repeat_parameters(folded, addresses.at<W>(repeated), several.gamma, several.beta);
                several.dy.stride = several.x.stride = several.dx.stride = folded.times * columns;
              }
              void* const memory = addresses.at<void>(scratch);
              kernels::group_norm_swish_grad<T>(several, memory);
              if (folded.rest.samples == 0) return;
              p.dy.data = p.dy.row(folded.main_samples());
              p.x.data = p.x.row(folded.main_samples());
              p.dx.data = p.dx.row(folded.main_samples());
              p.mean += folded.main_samples() * shape.groups;
              p.rstd += folded.main_samples() * shape.groups;
              p.dgamma = p.dgamma.from(main_slots * shape.channels);
              p.dbeta = p.dbeta.from(main_slots * shape.channels);
              kernels::group_norm_swish_grad<T>(p, memory);
            });
  dx.finish(call, plan);
  dgamma.finish(call, plan);
  dbeta.finish(call, plan);
}

void make_plan(const Call& call, const kernels::GroupShape& shape, Plan& plan) {
  if (shape.channels == 0) return;
  with_element_type(kernel_element(call, kX, {kDy, kDx}), [&]<class T>(T) { plan_kernel<T>(call, shape, plan); });
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
