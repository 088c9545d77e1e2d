// aclnnRmsNormGrad: contract and plan.
#include "operators/rms_norm_shape.h"
#include "operators/row_operator.h"

namespace descend::kernels {
template <class T>
void rms_norm_grad(const RowProblem<Wide<T>>& problem, void* scratch);
}

namespace descend {
namespace {

enum { kDy, kX, kRstd, kGamma, kDx, kDgamma };

std::vector<DtypeRow> dtype_rows() {
  std::vector<DtypeRow> rows;
  for (const RmsNormDtypes& row : rms_norm_dtypes()) {
    const bool host = row.products.has(Product::kHost);
    rows.push_back({row.products,
                    {row.x, row.x, row.rstd, row.gamma, host ? kAllFloats : row.x, host ? kAllFloats : kFloat32Only}});
  }
  return rows;
}

const RowOperands& parts() {
  static const RowOperands at{kX, {kDy, kX}, {kGamma}, {kRstd}, {kDx}, {kDgamma}};
  return at;
}

// The ranks of the public page, the only document that has this product.
Status check_ascend_950(const Call& call) {
  const auto check = [&](int i, uint64_t least, uint64_t most) -> Status {
    const Tensor& tensor = call[i].tensor;
    if (least <= tensor.rank() && tensor.rank() <= most) return {};
    return call.fail(Code::kTilingError, call.name(i), " has shape ", to_string(tensor.shape), ", but must have rank ",
                     least, " to ", most, " on ", info(call.product).name, ".");
  };
  for (int i : {kX, kDy, kDx}) DESCEND_RETURN_IF_ERROR(check(i, 2, 8));
  for (int i : {kRstd, kGamma, kDgamma}) DESCEND_RETURN_IF_ERROR(check(i, 1, 7));
  return {};
}

// The further rules of the Atlas products.
Status check_atlas(const Call& call) {
  for (int i : {kDy, kX, kRstd, kGamma}) {
    const Tensor& tensor = call[i].tensor;
    if (tensor.empty()) {
      return call.fail(Code::kTilingError, call.name(i), " has shape ", to_string(tensor.shape),
                       ", but must not be empty on ", info(call.product).name, ".");
    }
    DESCEND_RETURN_IF_ERROR(check_contiguous(call, i, Code::kTilingError));
  }
  if (call.product != Product::kAtlasInference) return {};
  for (int i : {kDy, kX, kGamma}) {
    const Tensor& tensor = call[i].tensor;
    const int64_t bytes = tensor.shape.back() * dtype_size(tensor.dtype);
    if (bytes < 32) {
      return call.fail(Code::kTilingError, call.name(i), " has a last axis of ", bytes,
                       " bytes, but it must have at least 32 on ", info(call.product).name, ".");
    }
  }
  return {};
}

Status validate(const Call& call, RowShape* shape) {
  DESCEND_RETURN_IF_ERROR(check_same_shape(call, kDy, kX, Code::kTilingError));
  DESCEND_RETURN_IF_ERROR(check_rms_norm_shape(call, kX, kGamma, kRstd, shape));
  DESCEND_RETURN_IF_ERROR(check_same_shape(call, kDx, kX, Code::kTilingError));
  DESCEND_RETURN_IF_ERROR(check_same_shape(call, kDgamma, kGamma, Code::kTilingError));
  if (call.on_host()) return {};
  return call.product == Product::kAscend950 ? check_ascend_950(call) : check_atlas(call);
}

void make_plan(const Call& call, const RowShape& shape, Plan& plan) {
  if (shape.columns == 0) return;
  with_element_type(row_element(call, parts()),
                    [&]<class T>(T) { plan_row_operator<T>(call, parts(), shape, kernels::rms_norm_grad<T>, plan); });
}

}  // namespace

extern const Operator rms_norm_grad{
    .name = "rms_norm_grad",
    .c_name = "aclnnRmsNormGrad",
    .summary = "Gradients of RMS norm with respect to its input and its weight.",
    .formula =
        "xhat   = x * rstd\n"
        "g      = dy * gamma\n"
        "dx     = rstd * (g - xhat * mean(g * xhat over the row))\n"
        "dgamma = sum over rows of dy * xhat",
    .source = "aclnnRmsNormGrad",
    .notes =
        "gamma has the last dimensions of x, and everything is a matrix [M, N]: N elements of gamma, M rows. "
        "atlas-inference does not take infinities or NaN in its inputs; phase 1 cannot see that. ascend-950 also takes "
        "empty tensors (dgamma is then 0) and strided inputs, x of rank 2 to 8, rstd and gamma of rank 1 to 7: so says "
        "the page aclnnRmsNormGrad of the public repository cann/ops-nn, the one document that has it. host also takes "
        "DOUBLE, any mix of floating dtypes for rstd, gamma and the outputs, empty tensors and strided ones.",
    .products = kRmsNormProducts,
    .parameters =
        {
            {"dy", "dy", Kind::kTensor, Role::kInput, false, nullptr, false, "as x",
             "Gradient of the loss with respect to the forward's output."},
            {"x", "x", Kind::kTensor, Role::kInput, false, nullptr, false, "[A1, ..., An, R1, ..., Rk], rank 1 to 8",
             "Input of the forward."},
            {"rstd", "rstd", Kind::kTensor, Role::kInput, false, nullptr, false,
             "[A1, ..., An], trailing dimensions of 1 aside",
             "1 / sqrt(mean(x * x) + epsilon) of each row, from the forward."},
            {"gamma", "gamma", Kind::kTensor, Role::kInput, false, nullptr, false, "[R1, ..., Rk]",
             "Weight of the forward."},
            {"dxOut", "dx_out", Kind::kTensor, Role::kOutput, false, nullptr, false, "as x",
             "Gradient with respect to x."},
            {"dgammaOut", "dgamma_out", Kind::kTensor, Role::kOutput, false, nullptr, false, "as gamma",
             "Gradient with respect to gamma; FLOAT, DOUBLE for DOUBLE input where it is allocated."},
        },
    .dtypes = dtype_rows(),
    .errors =
        {
            {Code::kParamNullptr, "any of the six tensors is null"},
            {Code::kParamInvalid,
             "a dtype that no row of the table has in that place; a combination that is no row; a private format; a "
             "view outside its storage; an output that overlaps another tensor other than exactly"},
            {Code::kTilingError,
             "ranks and shapes; on the Atlas products an empty tensor or a non-contiguous input, and on "
             "atlas-inference a last axis of dy, x or gamma shorter than 32 bytes"},
            {Code::kFindKernelError, "the product has no such operator"},
        },
    .infer = [](Call& call) { infer_row_operands(call, parts()); },
    .validate_and_plan = validate_then_plan<RowShape, validate, make_plan>,
    .const_outputs = true,
};

}  // namespace descend
