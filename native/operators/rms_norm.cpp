// aclnnRmsNorm: contract and plan.
#include "kernels/rms_norm.h"

#include <algorithm>

#include "operators/rms_norm_shape.h"
#include "operators/staging.h"

namespace descend {
namespace {

enum { kX, kGamma, kEpsilon, kY, kRstd };

std::vector<DtypeRow> dtype_rows() {
  std::vector<DtypeRow> rows;
  for (const RmsNormDtypes& row : rms_norm_dtypes()) {
    rows.push_back({row.products, {row.x, row.gamma, row.products.has(Product::kHost) ? kAllFloats : row.x, row.rstd}});
  }
  return rows;
}

void infer(Call& call) {
  const Tensor& x = call[kX].tensor;
  if (!call.given(kY)) call[kY].tensor = contiguous_tensor(x.dtype, x.shape);
  if (!call.given(kRstd)) {
    Dims shape = x.shape;
    const uint64_t k = std::min(call[kGamma].tensor.rank(), x.rank());
    std::fill(shape.data() + (x.rank() - k), shape.data() + x.rank(), 1);
    const Dtype wide = x.dtype == Dtype::kDouble ? Dtype::kDouble : Dtype::kFloat;
    call[kRstd].tensor = contiguous_tensor(wide, shape);
  }
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
  DESCEND_RETURN_IF_ERROR(check_rms_norm_shape(call, kX, kGamma, kRstd, shape));
  const Dims& x = call[kX].tensor.shape;
  const Dims& rstd = call[kRstd].tensor.shape;
  if (call.product == Product::kAscend950) DESCEND_RETURN_IF_ERROR(check_ascend_950(call));
  if (!call.on_host() && rstd.size() != shape->leading && rstd.size() != x.size()) {
    return call.fail(Code::kTilingError, call.name(kRstd), " has shape ", to_string(rstd), ", but must be ",
                     to_string(x.slice(0, shape->leading)), ", or that followed by 1s to the rank of ", call.name(kX),
                     ", ", x.size(), ".");
  }
  const Dims& y = call[kY].tensor.shape;
  if (y != x) {
    return call.fail(Code::kTilingError, call.name(kY), " has shape ", to_string(y), ", but must have that of ",
                     call.name(kX), ", ", to_string(x), ".");
  }
  if (!(call[kEpsilon].real >= 0)) {
    return call.fail(Code::kTilingError, call.name(kEpsilon), " is ", call[kEpsilon].real,
                     ", but must be 0 or greater.");
  }
  return {};
}

template <class T>
void plan_kernel(const Call& call, const RowShape& shape, Plan& plan) {
  const auto [leading, rows, columns] = shape;
  const StagedRows x = stage_rows(call, plan, kX, leading, columns, kElementOf<T>);
  const StagedParameter<T> gamma = stage_column_parameter<T>(call, plan, kGamma);
  const StagedOutput y = StagedOutput::rows(call, plan, kY, leading, columns, kElementOf<T>);
  const StagedOutput rstd = StagedOutput::vector(call, plan, kRstd, kElementOf<kernels::Wide<T>>);
  const Place scratch = plan.scratch(kernels::rms_norm_scratch<T>(rows, columns));
  plan.step(
      "rms_norm", 2.0 * rows * columns * sizeof(T),
      [=, epsilon = call[kEpsilon].real, y_rows = y.staged(), rstd_place = rstd.place()](const Addresses& addresses) {
        kernels::rms_norm<T>({.rows = rows,
                              .columns = columns,
                              .x = x.at<const T>(addresses),
                              .gamma = gamma.at(addresses),
                              .epsilon = epsilon,
                              .y = y_rows.at<T>(addresses),
                              .rstd = addresses.at<kernels::Wide<T>>(rstd_place)},
                             addresses.at<void>(scratch));
      });
  y.finish(call, plan);
  rstd.finish(call, plan);
}

void make_plan(const Call& call, const RowShape& shape, Plan& plan) {
  if (shape.rows == 0) return;
  with_element_type(kernel_element(call, kX, {kY}), [&]<class T>(T) { plan_kernel<T>(call, shape, plan); });
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
    .infer = infer,
    .validate_and_plan = validate_then_plan<RowShape, validate, make_plan>,
    .const_outputs = true,
};

}  // namespace descend
