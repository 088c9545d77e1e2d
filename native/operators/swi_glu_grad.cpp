// aclnnSwiGluGrad: contract and plan.
#include "kernels/elements/elements.h"
#include "operators/staging.h"
#include "operators/swi_glu_shape.h"

namespace descend::kernels {
template <class T>
void swi_glu_grad(const Elements<T, 3, 2>& problem);
}

namespace descend {
namespace {

enum { kYGrad, kX, kDim, kOut };

constexpr SwiGluParameters kParameters{kX, kDim, kYGrad, kOut, false};

void infer(Call& call) {
  const Tensor& x = call[kX].tensor;
  if (!call.given(kOut)) call[kOut].tensor = contiguous_tensor(x.dtype, x.shape);
}

Status validate(const Call& call, HalvedShape* shape) { return check_swi_glu(call, kParameters, shape); }

template <class T>
void plan_kernel(const Call& call, const HalvedShape& shape, Plan& plan) {
  const auto [leading, rows, columns] = shape;
  const StagedRows dy = stage_rows(call, plan, kYGrad, leading, columns, kElementOf<T>);
  const StagedRows x = stage_rows(call, plan, kX, leading, 2 * columns, kElementOf<T>);
  const StagedOutput dx = StagedOutput::rows(call, plan, kOut, leading, 2 * columns, kElementOf<T>);
  plan.step("swi_glu_grad", 5.0 * rows * columns * sizeof(T), [=, out = dx.staged()](const Addresses& addresses) {
    const auto a = x.at<const T>(addresses);
    const auto da = out.at<T>(addresses);
    kernels::swi_glu_grad<T>(
        {rows, columns, {dy.at<const T>(addresses), a, second_half(a, columns)}, {da, second_half(da, columns)}});
  });
  dx.finish(call, plan);
}

void make_plan(const Call& call, const HalvedShape& shape, Plan& plan) {
  if (shape.rows == 0 || shape.columns == 0) return;
  with_element_type(kernel_element(call, kX, {kYGrad, kOut}), [&]<class T>(T) { plan_kernel<T>(call, shape, plan); });
}

}  // namespace

extern const Operator swi_glu_grad{
    .name = "swi_glu_grad",
    .c_name = "aclnnSwiGluGrad",
    .summary = "Gradient of SwiGLU with respect to its input.",
    .formula =
        "sig   = sigmoid(a)                      a, b: the first and second half of x along dim\n"
        "out_a = yGrad * (sig + sig * (1 - sig) * a) * b\n"
        "out_b = yGrad * sig * a                 out_a, out_b: the halves of out",
    .source = "aclnnSwiGluGrad",
    .notes =
        "Strided tensors are fine. Empty ones are refused but for host. On atlas-inference half of what dim and the "
        "dimensions after it have must be a multiple of 64 bytes. host also takes DOUBLE and any mix of floating "
        "dtypes.",
    .products = kSwiGluProducts,
    .parameters = {{"yGrad", "y_grad", Kind::kTensor, Role::kInput, false, nullptr, false, "[A1, ..., An, H]",
                    "Gradient of the loss with respect to the forward's result."},
                   input_of("x", "[A1, ..., An, 2 H], rank 1 to 8; on atlas-inference H has whole 64 bytes",
                            "Input of the forward."),
                   {"dim", "dim", Kind::kInt, Role::kAttribute, false, "-1", false, "",
                    "Dimension of x that the forward cut in two, from -n to n - 1."},
                   output_of("out", "out", "as x", "Gradient with respect to x.")},
    .dtypes = swi_glu_dtypes(3),
    .errors = errors_of("yGrad, x or out is null",
                        "dtypes outside the table or different from each other; a private format; a view outside its "
                        "storage; an output that overlaps another tensor other than exactly; dim; a size along dim "
                        "that is odd; shapes; but for host an empty tensor; on atlas-inference halves that are no "
                        "multiple of 64 bytes"),
    .infer = infer,
    .validate_and_plan = validate_then_plan<HalvedShape, validate, make_plan>,
    .const_outputs = true,
};

}  // namespace descend
