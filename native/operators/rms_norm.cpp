// aclnnRmsNorm: contract and plan.
#include "operators/rms_norm_shape.h"
#include "operators/row_operator.h"

namespace descend::kernels {
template <class T>
void rms_norm(const RowProblem<Wide<T>>& problem, void* scratch);
}

namespace descend {
namespace {

using namespace rms_norm_parameters;

std::vector<DtypeRow> dtype_rows() {
  std::vector<DtypeRow> rows;
  for (const RmsNormDtypes& row : rms_norm_dtypes()) {
    rows.push_back({row.products, {row.x, row.gamma, row.products.has(Product::kHost) ? kAllFloats : row.x, row.rstd}});
  }
  return rows;
}

const RowOperands& parts() {
  static const RowOperands at = rms_norm_operands();
  return at;
}

// The rules of the public page, the only document that has this product.
Status check_ascend_950(const Call& call) {
  const Dims &x = call[kX].tensor.shape, &rstd = call[kRstd].tensor.shape;
  const char* product = info(call.product).name;
  if (call[kGamma].tensor.empty()) {
    return call.fail(Code::kTilingError, call.name(kGamma), " has shape ", to_string(call[kGamma].tensor.shape),
                     ", but must not be empty on ", product, ".");
  }
  if (rstd.size() == x.size()) return {};
  return call.fail(Code::kTilingError, call.name(kRstd), " has shape ", to_string(rstd), ", but must have the rank of ",
                   call.name(kX), ", ", x.size(), ", on ", product, ".");
}

Status validate(const Call& call, RowShape* shape) {
  DESCEND_RETURN_IF_ERROR(check_rms_norm(call, shape));
  return call.product == Product::kAscend950 ? check_ascend_950(call) : Status{};
}

void make_plan(const Call& call, const RowShape& shape, Plan& plan) {
  if (shape.rows == 0) return;
  with_element_type(row_element(call, parts()),
                    [&]<class T>(T) { plan_row_operator<T>(call, parts(), shape, kernels::rms_norm<T>, plan); });
}

}  // namespace

extern const Operator rms_norm{
    .name = "rms_norm",
    .c_name = "aclnnRmsNorm",
    .summary = "RMS norm: each row divided by its root mean square, times a weight.",
    .formula =
        "rstd = 1 / sqrt(mean(x * x over the row) + epsilon)\n"
        "y    = x * rstd * gamma",
    .source = "aclnnRmsNorm",
    .notes =
        "gamma has the last dimensions of x; the rest counts the rows. Where rstd is allocated it is FLOAT, DOUBLE "
        "for DOUBLE input, and has x's rank with 1 for each dimension of gamma. Strided and empty tensors are fine, "
        "but "
        "for an empty gamma on ascend-950, where rstd must have x's rank: so says the page aclnnRmsNorm of the public "
        "repository cann/ops-nn, the one document that has it. host also takes DOUBLE and any mix of floating dtypes "
        "for gamma and the outputs.",
    .products = kRmsNormProducts,
    .parameters =
        {
            {"x", "x", Kind::kTensor, Role::kInput, false, nullptr, false, "[A1, ..., An, R1, ..., Rk], rank 1 to 8",
             "What is normalised."},
            {"gamma", "gamma", Kind::kTensor, Role::kInput, false, nullptr, false, "[R1, ..., Rk]", "Weight."},
            {"epsilon", "epsilon", Kind::kFloat, Role::kAttribute, false, "1e-06", false, "",
             "Added to the mean of the squares; at least 0."},
            {"yOut", "y_out", Kind::kTensor, Role::kOutput, false, nullptr, false, "as x", "The result."},
            {"rstdOut", "rstd_out", Kind::kTensor, Role::kOutput, false, nullptr, false,
             "[A1, ..., An], or followed by 1s to x's rank", "What the gradient needs."},
        },
    .dtypes = dtype_rows(),
    .errors =
        {
            {Code::kParamNullptr, "x, gamma, yOut or rstdOut is null"},
            {Code::kParamInvalid,
             "a dtype that no row of the table has in that place; a combination that is no row; a private format; a "
             "view outside its storage; an output that overlaps another tensor other than exactly"},
            {Code::kTilingError, "ranks and shapes; a negative epsilon; on ascend-950 an empty gamma"},
            {Code::kFindKernelError, "the product has no such operator"},
        },
    .infer = [](Call& call) { infer_row_operands(call, parts()); },
    .validate_and_plan = validate_then_plan<RowShape, validate, make_plan>,
    .const_outputs = true,
};

}  // namespace descend
