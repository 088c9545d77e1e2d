// aclnnDeepNorm: contract and plan.
#include "operators/row_operator.h"

namespace descend::kernels {
template <class T>
void deep_norm(const RowProblem<Wide<T>>& problem, void* scratch);
}

namespace descend {
namespace {

enum { kX, kGx, kBeta, kGamma, kAlpha, kEpsilon, kMean, kRstd, kY };

const RowOperands& parts() {
  static const RowOperands at{.x = kX,
                              .inputs = {kX, kGx},
                              .parameters = {kGamma, kBeta},
                              .numbers = {kAlpha},
                              .results = {kY},
                              .statistics = {kMean, kRstd},
                              .scalars = {kEpsilon}};
  return at;
}

Status validate(const Call& call, RowShape* shape) {
  DESCEND_RETURN_IF_ERROR(check_row_operands(call, parts(), shape));
  return check_epsilon(call, kEpsilon, Code::kParamInvalid);
}

void make_plan(const Call& call, const RowShape& shape, Plan& plan) {
  if (shape.rows == 0) return;
  with_element_type(row_element(call, parts()),
                    [&]<class T>(T) { plan_row_operator<T>(call, parts(), shape, kernels::deep_norm<T>, plan); });
}

using enum Product;
constexpr ProductSet kWithBfloat16(kAtlasA3, kAtlasA2Training, kAtlasA2Inference, kAscend950);
constexpr ProductSet kWithoutBfloat16 = kWithBfloat16 | ProductSet(kAtlasInference);
constexpr DtypeSet kF32{Dtype::kFloat};

DtypeRow row(ProductSet products, DtypeSet x) { return {products, {x, x, x, x, kF32, kF32, x}}; }

}  // namespace

extern const Operator deep_norm{
    .name = "deep_norm",
    .c_name = "aclnnDeepNorm",
    .summary = "Deep norm, which is layer norm of alpha * x + gx.",
    .formula =
        "z         = alpha * x + gx\n"
        "mean, var = mean and biased variance of each row of z\n"
        "rstd      = 1 / sqrt(var + epsilon)\n"
        "y         = (z - mean) * rstd * gamma + beta",
    .source = "aclnnDeepNorm",
    .notes =
        "gamma and beta have the last dimensions of x, and everything is a matrix [M, N]: N elements of gamma, M rows. "
        "The variance does not cancel, however far from 0 the data lies. alpha is rounded to FLOAT unless a tensor is "
        "DOUBLE. Strided and empty tensors are fine; a row without elements has mean 0 and rstd NaN. host also takes "
        "DOUBLE, any mix of floating dtypes, x of rank 1, gamma of all its dimensions, and mean and rstd of any shape "
        "with M elements.",
    .products = kWithoutBfloat16 | ProductSet(kHost),
    .parameters = {input_of("x", "[A1, ..., An, R1, ..., Rk], rank 2 to 8", "What alpha scales: the residual."),
                   input_of("gx", "as x", "What is added: the output of a layer."),
                   input_of("beta", "as gamma", "Bias."), input_of("gamma", "[R1, ..., Rk]", "Weight."),
                   number_of("alpha", "0.3", "Factor of x."),
                   number_of("epsilon", "1e-06", "Added to the variance; at least 0."),
                   output_of("meanOut", "mean_out", "[A1, ..., An, 1, ..., 1]", "Mean of each row of z."),
                   output_of("rstdOut", "rstd_out", "as meanOut", "1 / sqrt(variance + epsilon) of each row of z."),
                   output_of("yOut", "y_out", "as x", "The result.")},
    .dtypes = {row(kWithoutBfloat16, kF32),
               row(kWithoutBfloat16, DtypeSet{Dtype::kFloat16}),
               row(kWithBfloat16, DtypeSet{Dtype::kBfloat16}),
               {ProductSet(kHost), std::vector<DtypeSet>(7, kAllFloats)}},
    .errors = errors_of("any of the seven tensors is null",
                        "a dtype that no row of the table has in that place; a combination that is no row; a private "
                        "format; a view outside its storage; an output that overlaps another tensor other than "
                        "exactly; ranks and shapes; a negative epsilon"),
    .infer = [](Call& call) { infer_row_operands(call, parts()); },
    .validate_and_plan = validate_then_plan<RowShape, validate, make_plan>,
    .const_outputs = true,
};

}  // namespace descend
