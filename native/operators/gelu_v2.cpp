// aclnnGeluV2, and aclnnGelu, which has its form with tanh alone: contract and plan.
#include "operators/gelu_shape.h"
#include "operators/registry.h"

namespace descend::kernels {
template <class T>
void gelu_v2(const Elements<T, 1, 1>& problem, bool by_tanh);
}

namespace descend {
namespace {

enum { kX, kApproximate, kY };
enum { kSelf, kOut };  // of aclnnGelu

std::span<const Operator* const> variants();

void infer(Call& call) {
  const Tensor& x = call[kX].tensor;
  if (!call.given(kY)) call[kY].tensor = contiguous_tensor(x.dtype, x.shape);
}

template <class T>
void plan_kernel(const Call& call, int x, int y, bool by_tanh, Plan& plan) {
  const GeluShape shape(call[x].tensor.shape);
  const StagedRows in = stage_rows(call, plan, x, shape.leading, shape.columns, kElementOf<T>);
  const StagedOutput out = StagedOutput::rows(call, plan, y, shape.leading, shape.columns, kElementOf<T>);
  const int64_t rows = shape.rows, columns = shape.columns;
  plan.step("gelu", 2.0 * rows * columns * sizeof(T), [=, staged = out.staged()](const Addresses& addresses) {
    kernels::gelu_v2<T>({rows, columns, {in.at<const T>(addresses)}, {staged.at<T>(addresses)}}, by_tanh);
  });
  out.finish(call, plan);
}

Status check_and_plan(const Call& call, int x, int y, bool by_tanh, Plan* plan) {
  const std::string rule = std::string("that of ") + call.name(x);
  DESCEND_RETURN_IF_ERROR(check_gelu_shape(call, y, call[x].tensor.shape, rule.c_str()));
  if (plan == nullptr || call[x].tensor.empty()) return {};
  with_element_type(kernel_element(call, x, {y}), [&]<class T>(T) { plan_kernel<T>(call, x, y, by_tanh, *plan); });
  return {};
}

Status validate_and_plan(const Call& call, Plan* plan) {
  const int64_t form = call[kApproximate].integer;
  if (form != 0 && form != 1) {
    return call.fail(Code::kParamInvalid, call.name(kApproximate), " is ", form, ", but must be 0 (none) or 1 (tanh).");
  }
  return check_and_plan(call, kX, kY, form == 1, plan);
}

Status plan_gelu(const Call& call, Plan* plan) { return check_and_plan(call, kSelf, kOut, true, plan); }

}  // namespace

extern const Operator gelu_v2{
    .name = "gelu_v2",
    .c_name = "aclnnGeluV2",
    .summary = "GELU, the activation of BERT, GPT and others: x times the normal distribution's function of x.",
    .formula =
        "y = x * Phi(x) = x * (1 + erf(x / sqrt(2))) / 2                             approximate 0: none\n"
        "y = x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2                 approximate 1: tanh",
    .source = "aclnnGeluV2",
    .notes = "Strided and empty tensors are fine. host also takes DOUBLE and any mix of floating dtypes.",
    .products = kGeluProducts,
    .parameters = {input_of("x", "[A1, ..., An], rank 0 to 8", "What is activated."),
                   {"approximate", "approximate", Kind::kInt, Role::kAttribute, false, "0", false, "",
                    "0: none, by erf; 1: tanh."},
                   output_of("y", "y", "as x", "The result.")},
    .dtypes = {{kWithBfloat16 | kWithoutBfloat16, {kFloat32Only, kFloat32Only}},
               {kWithBfloat16 | kWithoutBfloat16, {kFloat16Only, kFloat16Only}},
               {kWithBfloat16, {kBfloat16Only, kBfloat16Only}},
               {ProductSet(Product::kHost), {kAllFloats, kAllFloats}}},
    .errors = errors_of("x or y is null",
                        "dtypes outside the table or different from each other; a private format; a view outside its "
                        "storage; an output that overlaps x other than exactly; shapes that differ; approximate "
                        "other than 0 and 1"),
    .infer = infer,
    .validate_and_plan = validate_and_plan,
    .variants = variants,
};

namespace {

std::span<const Operator* const> variants() {
  static const Operator gelu = [] {
    Operator op = gelu_v2;
    op.variants = nullptr;
    op.name = "gelu";
    op.c_name = "aclnnGelu";
    op.summary = "The same with tanh.";
    op.formula = "out = self * (1 + tanh(sqrt(2 / pi) * (self + 0.044715 * self^3))) / 2";
    op.source = op.c_name;
    op.parameters = {input_of("self", "[A1, ..., An], rank 0 to 8", "What is activated."),
                     output_of("out", "out", "as self", "The result.")};
    op.infer = nullptr;
    op.validate_and_plan = plan_gelu;
    return op;
  }();
  static const Operator* const list[] = {&gelu};
  return list;
}

}  // namespace
}  // namespace descend
