// aclnnAddLayerNormGrad: contract and plan.
#include "operators/row_operator.h"

namespace descend::kernels {
template <class T>
void add_layer_norm_grad(const RowProblem<Wide<T>>& problem, void* scratch);
}

namespace descend {
namespace {

enum { kDy, kX1, kX2, kRstd, kMean, kGamma, kDsum, kDx, kDgamma, kDbeta };

const RowOperands& parts() {
  static const RowOperands at{.x = kDy,
                              .inputs = {kDy, kX1, kX2, kDsum},
                              .parameters = {kGamma},
                              .numbers = {kMean, kRstd},
                              .results = {kDx},
                              .sums = {kDgamma, kDbeta},
                              .may_be_one_row = true};
  return at;
}

Status validate(const Call& call, RowShape* shape) {
  DESCEND_RETURN_IF_ERROR(check_row_operands(call, parts(), shape));
  for (const int i : {kDy, kGamma}) {
    if (call.on_host() || !call[i].tensor.empty()) continue;
    return call.fail(Code::kParamInvalid, call.name(i), " has shape ", to_string(call[i].tensor.shape),
                     ", but must not be empty on ", info(call.product).name, ".");
  }
  return {};
}

void make_plan(const Call& call, const RowShape& shape, Plan& plan) {
  if (shape.columns == 0) return;
  with_element_type(row_element(call, parts()), [&]<class T>(T) {
    plan_row_operator<T>(call, parts(), shape, kernels::add_layer_norm_grad<T>, plan);
  });
}

using enum Product;
constexpr ProductSet kWithBfloat16(kAtlasA3, kAtlasA2Training, kAtlasA2Inference, kAscend950);
constexpr ProductSet kHuawei = kWithBfloat16 | ProductSet(kAtlasInference);
constexpr DtypeSet kF32{Dtype::kFloat};

DtypeRow row(ProductSet products, DtypeSet x) { return {products, {x, x, x, kF32, kF32, x, x, x, kF32, kF32}}; }

}  // namespace

extern const Operator add_layer_norm_grad{
    .name = "add_layer_norm_grad",
    .c_name = "aclnnAddLayerNormGrad",
    .summary = "Gradients of layer norm of a sum.",
    .formula =
        "xhat   = (x1 + x2 - mean) * rstd\n"
        "g      = dy * gamma\n"
        "dx     = rstd * (g - mean(g over the row) - xhat * mean(g * xhat over the row)) + dsum\n"
        "dgamma = sum over rows of dy * xhat\n"
        "dbeta  = sum over rows of dy",
    .source = "aclnnAddLayerNormGrad",
    .notes =
        "gamma has the last dimensions of x1, and everything is a matrix [M, N]: N elements of gamma, M rows. dsum is "
        "the gradient that came in for the sum; null: there was none. dx is the gradient with respect to x1, to x2 and "
        "to a bias of their shape. Strided tensors are fine, empty ones on host: without rows dgamma and dbeta are 0. "
        "host also takes DOUBLE, any mix of floating dtypes, and mean and rstd of any shape with M elements.",
    .products = kHuawei | ProductSet(kHost),
    .parameters = {input_of("dy", "[A1, ..., An, R1, ..., Rk], rank 1 to 8",
                            "Gradient of the loss with respect to the forward's y."),
                   input_of("x1", "as dy", "One term of the forward's sum."),
                   {"x2", "x2", Kind::kTensor, Role::kInput, false, nullptr, false, "as dy",
                    "The other; null on host: x1 is the sum.", true},
                   input_of("rstd", "[A1, ..., An, 1, ..., 1]", "1 / sqrt(variance + epsilon) of each row of the sum."),
                   input_of("mean", "as rstd", "Mean of each such row, from the forward."),
                   input_of("gamma", "[R1, ..., Rk]", "Weight of the forward."),
                   {"dsumOptional", "dsum", Kind::kTensor, Role::kInput, true, "None", false, "as dy",
                    "Gradient of the loss with respect to the forward's x; may be null."},
                   output_of("dxOut", "dx_out", "as dy", "Gradient with respect to the sum, and so to x1 and x2."),
                   output_of("dgammaOut", "dgamma_out", "as gamma", "Gradient with respect to gamma."),
                   output_of("dbetaOut", "dbeta_out", "as gamma", "Gradient with respect to beta.")},
    .dtypes = {row(kHuawei, kF32),
               row(kHuawei, DtypeSet{Dtype::kFloat16}),
               row(kWithBfloat16, DtypeSet{Dtype::kBfloat16}),
               {ProductSet(kHost), std::vector<DtypeSet>(10, kAllFloats)}},
    .errors = errors_of("a tensor but dsumOptional is null; on host x2 may be, too",
                        "a dtype that no row of the table has in that place; a combination that is no row; a private "
                        "format; a view outside its storage; an output that overlaps another tensor other than "
                        "exactly; ranks and shapes; on Huawei's products an empty tensor"),
    .infer = [](Call& call) { infer_row_operands(call, parts()); },
    .validate_and_plan = validate_then_plan<RowShape, validate, make_plan>,
    .const_outputs = true,
};

}  // namespace descend
