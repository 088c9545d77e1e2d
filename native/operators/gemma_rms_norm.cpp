// aclnnGemmaRmsNorm: contract and plan.
#include "operators/rms_norm_shape.h"

namespace descend::kernels {
template <class T>
void gemma_rms_norm(const RowProblem<Wide<T>>& problem, void* scratch);
}

namespace descend {
namespace {

const RowOperands& parts() {
  static const RowOperands at = rms_norm_operands();
  return at;
}

void make_plan(const Call& call, const RowShape& shape, Plan& plan) {
  if (shape.rows == 0) return;
  with_element_type(row_element(call, parts()),
                    [&]<class T>(T) { plan_row_operator<T>(call, parts(), shape, kernels::gemma_rms_norm<T>, plan); });
}

DtypeRow row(DtypeSet x) { return {kRmsNormBfloat16, {x, x, x, DtypeSet{Dtype::kFloat}}}; }

}  // namespace

extern const Operator gemma_rms_norm{
    .name = "gemma_rms_norm",
    .c_name = "aclnnGemmaRmsNorm",
    .summary = "RMS norm as Gemma has it: each row divided by its root mean square, times a weight plus 1.",
    .formula =
        "rstd = 1 / sqrt(mean(x * x over the row) + epsilon)\n"
        "y    = x * rstd * (1 + gamma)",
    .source = "aclnnGemmaRmsNorm",
    .notes =
        "gamma has the last dimensions of x; the rest counts the rows. 1 + gamma is computed in FLOAT, DOUBLE "
        "where a tensor is. Where rstd is allocated it is FLOAT, DOUBLE for DOUBLE input, and has x's rank with 1 for "
        "each dimension of gamma. Strided and empty tensors are fine. host also takes DOUBLE and any mix of floating "
        "dtypes for gamma and the outputs.",
    .products = kRmsNormBfloat16 | ProductSet(Product::kHost),
    .parameters = {input_of("x", "[A1, ..., An, R1, ..., Rk], rank 1 to 8", "What is normalised."),
                   input_of("gamma", "[R1, ..., Rk]", "Weight, less 1."),
                   number_of("epsilon", "1e-06", "Added to the mean of the squares; at least 0."),
                   output_of("yOut", "y_out", "as x", "The result."),
                   output_of("rstdOut", "rstd_out", "[A1, ..., An], or followed by 1s to x's rank",
                             "What the gradient needs.")},
    .dtypes = {row(DtypeSet{Dtype::kFloat}),
               row(DtypeSet{Dtype::kFloat16}),
               row(DtypeSet{Dtype::kBfloat16}),
               {ProductSet(Product::kHost), std::vector<DtypeSet>(4, kAllFloats)}},
    .errors =
        {
            {Code::kParamNullptr, "x, gamma, yOut or rstdOut is null"},
            {Code::kParamInvalid,
             "a dtype that no row of the table has in that place; a combination that is no row; a private format; a "
             "view outside its storage; an output that overlaps another tensor other than exactly"},
            {Code::kTilingError, "ranks and shapes; a negative epsilon"},
            {Code::kFindKernelError, "the product has no such operator"},
        },
    .infer = [](Call& call) { infer_row_operands(call, parts()); },
    .validate_and_plan = validate_then_plan<RowShape, check_rms_norm, make_plan>,
    .const_outputs = true,
};

}  // namespace descend
