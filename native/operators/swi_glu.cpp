// aclnnSwiGlu: contract and plan.
#include "kernels/elements/elements.h"
#include "operators/staging.h"
#include "operators/swi_glu_shape.h"

namespace descend::kernels {
template <class T>
void swi_glu(const Elements<T, 2, 1>& problem);
}

namespace descend {
namespace {

enum { kX, kDim, kOut };

constexpr SwiGluParameters kParameters{kX, kDim, kOut, kX, true};

void infer(Call& call) {
  if (!call.given(kOut)) call[kOut].tensor = contiguous_tensor(call[kX].tensor.dtype, half_of_x(call, kParameters));
}

Status validate(const Call& call, HalvedShape* shape) { return check_swi_glu(call, kParameters, shape); }

template <class T>
void plan_kernel(const Call& call, const HalvedShape& shape, Plan& plan) {
  const auto [leading, rows, columns] = shape;
  const StagedRows x = stage_rows(call, plan, kX, leading, 2 * columns, kElementOf<T>);
  const StagedOutput out = StagedOutput::rows(call, plan, kOut, leading, columns, kElementOf<T>);
  plan.step("swi_glu", 3.0 * rows * columns * sizeof(T), [=, staged = out.staged()](const Addresses& addresses) {
    const auto a = x.at<const T>(addresses);
    kernels::swi_glu<T>({rows, columns, {a, second_half(a, columns)}, {staged.at<T>(addresses)}});
  });
  out.finish(call, plan);
}

void make_plan(const Call& call, const HalvedShape& shape, Plan& plan) {
  if (shape.rows == 0 || shape.columns == 0) return;
  with_element_type(kernel_element(call, kX, {kOut}), [&]<class T>(T) { plan_kernel<T>(call, shape, plan); });
}

}  // namespace

extern const Operator swi_glu{
    .name = "swi_glu",
    .c_name = "aclnnSwiGlu",
    .summary = "The gated unit of Llama and others: swish of one half of x, times the other half.",
    .formula = "out = a * sigmoid(a) * b        a, b: the first and second half of x along dim",
    .source = "aclnnSwiGlu",
    .notes =
        "Strided and empty tensors are fine, the latter but for atlas-inference. There half of what dim and the "
        "dimensions after it have must also be a multiple of 64 bytes. host also takes DOUBLE and any mix of floating "
        "dtypes.",
    .products = kSwiGluProducts,
    .parameters = {input_of("x", "[A1, ..., An, 2 H], rank 1 to 8; on atlas-inference H has whole 64 bytes",
                            "Both halves along dim, here the last dimension."),
                   {"dim", "dim", Kind::kInt, Role::kAttribute, false, "-1", false, "",
                    "Dimension of x that is cut in two, from -n to n - 1."},
                   output_of("out", "out", "[A1, ..., An, H]", "The result.")},
    .dtypes = swi_glu_dtypes(2),
    .errors = errors_of("x or out is null",
                        "dtypes outside the table or different from each other; a private format; a view outside its "
                        "storage; an output that overlaps another tensor; dim; a size along dim that is odd; shapes; "
                        "on atlas-inference an empty tensor, and halves that are no multiple of 64 bytes"),
    .infer = infer,
    .validate_and_plan = validate_then_plan<HalvedShape, validate, make_plan>,
    .const_outputs = true,
};

}  // namespace descend
