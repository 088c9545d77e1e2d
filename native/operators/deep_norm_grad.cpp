// aclnnDeepNormGrad: contract and plan.
#include "operators/row_operator.h"

namespace descend::kernels {
template <class T>
void deep_norm_grad(const RowProblem<Wide<T>>& problem, void* scratch);
}

namespace descend {
namespace {

enum { kDy, kX, kGx, kGamma, kMean, kRstd, kAlpha, kDx, kDgx, kDbeta, kDgamma };

const RowOperands& parts() {
  static const RowOperands at{kX, {kDy, kX, kGx}, {kGamma}, {kMean, kRstd, kAlpha}, {kDx, kDgx}, {kDbeta, kDgamma}};
  return at;
}

Status validate_and_plan(const Call& call, Plan* plan) {
  RowShape shape;
  DESCEND_RETURN_IF_ERROR(check_row_operands(call, parts(), &shape));
  if (plan == nullptr || shape.columns == 0) return {};
  with_element_type(row_element(call, parts()),
                    [&]<class T>(T) { plan_row_operator<T>(call, parts(), shape, kernels::deep_norm_grad<T>, *plan); });
  return {};
}

using enum Product;
constexpr ProductSet kWithBfloat16(kAtlasA3, kAtlasA2Training, kAscend950);
constexpr DtypeSet kF32{Dtype::kFloat};

DtypeRow row(ProductSet products, DtypeSet x) { return {products, {x, x, x, x, kF32, kF32, x, x, kF32, kF32}}; }

}  // namespace

extern const Operator deep_norm_grad{
    .name = "deep_norm_grad",
    .c_name = "aclnnDeepNormGrad",
    .summary = "Gradients of deep norm, which is layer norm of alpha * x + gx.",
    .formula =
        "xhat   = (alpha * x + gx - mean) * rstd\n"
        "g      = dy * gamma\n"
        "dgx    = rstd * (g - mean(g over the row) - xhat * mean(g * xhat over the row))\n"
        "dx     = alpha * dgx\n"
        "dbeta  = sum over rows of dy\n"
        "dgamma = sum over rows of dy * xhat",
    .source = "aclnnDeepNormGrad",
    .notes =
        "gamma has the last dimensions of x, and everything is a matrix [M, N]: N elements of gamma, M rows. alpha is "
        "rounded to FLOAT unless a tensor is DOUBLE. Strided and empty tensors are fine: without rows dbeta and dgamma "
        "are 0. host also takes DOUBLE, any mix of floating dtypes, x of rank 1, gamma of all its dimensions, and mean "
        "and rstd of any shape with M elements.",
    .products = ProductSet(kAtlasA3, kAtlasA2Training, kAtlasInference, kAscend950, kHost),
    .parameters = {input_of("dy", "as x", "Gradient of the loss with respect to the forward's output."),
                   input_of("x", "[A1, ..., An, R1, ..., Rk], rank 2 to 8", "Input of the forward that alpha scales."),
                   input_of("gx", "as x", "The forward's other input."),
                   input_of("gamma", "[R1, ..., Rk]", "Weight of the forward."),
                   input_of("mean", "[A1, ..., An, 1, ..., 1]", "Mean of each row of alpha * x + gx."),
                   input_of("rstd", "as mean", "1 / sqrt(variance + epsilon) of each such row, from the forward."),
                   number_of("alpha", "0.3", "Factor of x in the forward."),
                   output_of("dxOut", "dx_out", "as x", "Gradient with respect to x."),
                   output_of("dgxOut", "dgx_out", "as x", "Gradient with respect to gx."),
                   output_of("dbetaOut", "dbeta_out", "as gamma", "Gradient with respect to the forward's bias."),
                   output_of("dgammaOut", "dgamma_out", "as gamma", "Gradient with respect to gamma.")},
    .dtypes = {row(kWithBfloat16 | ProductSet(kAtlasInference), kF32),
               row(kWithBfloat16 | ProductSet(kAtlasInference), DtypeSet{Dtype::kFloat16}),
               row(kWithBfloat16, DtypeSet{Dtype::kBfloat16}),
               {ProductSet(kHost), std::vector<DtypeSet>(10, kAllFloats)}},
    .errors = errors_of("any of the ten tensors is null",
                        "a dtype that no row of the table has in that place; a combination that is no row; a private "
                        "format; a view outside its storage; an output that overlaps another tensor other than "
                        "exactly; ranks and shapes"),
    .infer = [](Call& call) { infer_row_operands(call, parts()); },
    .validate_and_plan = validate_and_plan,
    .const_outputs = true,
};

}  // namespace descend
