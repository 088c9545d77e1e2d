// aclnnAddRmsNorm: contract and plan.
#include "operators/add_rms_norm_variants.h"
#include "operators/rms_norm_shape.h"
#include "operators/row_operator.h"

namespace descend::kernels {
template <class T>
void add_rms_norm(const RowProblem<Wide<T>>& problem, void* scratch);
}

namespace descend {
namespace {

enum { kX1, kX2, kGamma, kEpsilon, kY, kRstd, kX };

const RowOperands& parts() {
  static const RowOperands at{.x = kX1,
                              .inputs = {kX1, kX2},
                              .parameters = {kGamma},
                              .results = {kX, kY},
                              .statistics = {kRstd},
                              .scalars = {kEpsilon},
                              .may_be_one_row = true};
  return at;
}

// Without rstdOut the page has gamma of shape [1, N] whatever the rank of x1, whose last axis is then a row.
bool is_row_of_last_axis(const Call& call) {
  const Dims &x = call[kX1].tensor.shape, &gamma = call[kGamma].tensor.shape;
  return !call.given(kRstd) && !x.empty() && gamma.size() == 2 && gamma[0] == 1 && gamma[1] == x.back();
}

Status check_without_rstd(const Call& call) {
  const char* product = info(call.product).name;
  if (call[kX1].tensor.dtype == Dtype::kFloat) {
    return call.fail(Code::kParamInvalid, call.name(kX1), " has dtype FLOAT, but without ", call.name(kRstd),
                     " must have 16 bits on ", product, ".");
  }
  if (is_row_of_last_axis(call)) return {};
  return call.fail(Code::kParamInvalid, call.name(kGamma), " has shape ", to_string(call[kGamma].tensor.shape),
                   ", but without ", call.name(kRstd), " must be [1, N] on ", product, ", N the last dimension of ",
                   call.name(kX1), ", whose shape is ", to_string(call[kX1].tensor.shape), ".");
}

Status validate(const Call& call, RowShape* shape) {
  if (!call.on_host() && !call.given(kRstd)) DESCEND_RETURN_IF_ERROR(check_without_rstd(call));
  if (is_row_of_last_axis(call)) {
    DESCEND_RETURN_IF_ERROR(check_rows_alike(call, parts()));
    const Tensor& x = call[kX1].tensor;
    *shape = {.leading = x.rank() - 1, .columns = x.shape.back()};
    shape->rows = product(x.shape.slice(0, shape->leading));
  } else {
    DESCEND_RETURN_IF_ERROR(check_row_operands(call, parts(), shape));
  }
  return check_epsilon(call, kEpsilon, Code::kParamInvalid);
}

void make_plan(const Call& call, const RowShape& shape, Plan& plan) {
  if (shape.rows == 0) return;
  with_element_type(row_element(call, parts()),
                    [&]<class T>(T) { plan_row_operator<T>(call, parts(), shape, kernels::add_rms_norm<T>, plan); });
}

Status validate_first(const Call& call) {
  if (call.on_host() || !call.given(kRstd) || call.given(kX)) return {};
  return call.fail(Code::kParamNullptr, call.name(kX), " is null, but must be given where ", call.name(kRstd),
                   " is, on ", info(call.product).name, ".");
}

DtypeRow row(ProductSet products, DtypeSet x) { return {products, {x, x, x, x, DtypeSet{Dtype::kFloat}, x}}; }

}  // namespace

extern const Operator add_rms_norm{
    .name = "add_rms_norm",
    .c_name = "aclnnAddRmsNorm",
    .summary = "RMS norm of a sum: each row divided by its root mean square, times a weight; and the sum.",
    .formula =
        "x    = x1 + x2\n"
        "rstd = 1 / sqrt(mean(x * x over the row) + epsilon)\n"
        "y    = x * rstd * gamma",
    .source = "aclnnAddRmsNorm",
    .notes =
        "gamma has the last dimensions of x1; the rest counts the rows. y is computed from the sum before it is "
        "rounded "
        "to xOut. Without rstdOut the documents have gamma of shape [1, N], N the last dimension of x1, and 16 bits; "
        "xOut may then be null, too. Strided and empty tensors are fine; the rstd of a row without elements is NaN. "
        "host also takes DOUBLE, any mix of floating dtypes, rstdOut and xOut null or not, and rstdOut of any shape "
        "with an element a row.",
    .products = kRmsNormProducts,
    .parameters = {input_of("x1", "[A1, ..., An, R1, ..., Rk], rank 1 to 8", "One term of the sum."),
                   input_of("x2", "as x1", "The other."), input_of("gamma", "[R1, ..., Rk]", "Weight."),
                   number_of("epsilon", "1e-06", "Added to the mean of the squares; at least 0."),
                   output_of("yOut", "y_out", "as x1", "The result."),
                   optional(output_of("rstdOut", "rstd_out", "[A1, ..., An, 1, ..., 1]", "What the gradient needs.")),
                   optional(output_of("xOut", "x_out", "as x1", "The sum, rounded."))},
    .dtypes = {row(kRmsNormHuawei, DtypeSet{Dtype::kFloat}),
               row(kRmsNormHuawei, DtypeSet{Dtype::kFloat16}),
               row(kRmsNormBfloat16, DtypeSet{Dtype::kBfloat16}),
               {ProductSet(Product::kHost), std::vector<DtypeSet>(6, kAllFloats)}},
    .errors = errors_of("x1, x2, gamma or yOut is null; on Huawei's products xOut is null and rstdOut is not",
                        "a dtype that no row of the table has in that place; a combination that is no row; a private "
                        "format; a view outside its storage; an output that overlaps another tensor other than "
                        "exactly; ranks and shapes; a negative epsilon; on Huawei's products FLOAT without rstdOut"),
    .infer = [](Call& call) { infer_row_operands(call, parts()); },
    .validate_and_plan = validate_then_plan<RowShape, validate, make_plan>,
    .validate_first = validate_first,
    .variants = add_rms_norm_variants,
};

}  // namespace descend
