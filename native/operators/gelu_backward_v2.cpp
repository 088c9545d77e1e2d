// aclnnGeluBackwardV2, and aclnnGeluBackward, which has its form with tanh alone: contract and plan.
#include "operators/gelu_shape.h"
#include "operators/registry.h"

namespace descend::kernels {
template <class T>
void gelu_backward_v2(const Elements<T, 2, 1>& problem, bool by_tanh);
}

namespace descend {
namespace {

// aclnnGeluBackward has no approximate, and gradInput in its place.
enum { kGradOutput, kX, kApproximate, kGradInput };

std::span<const Operator* const> variants();

Dtype promoted(Dtype a, Dtype b) {
  if (a == b) return a;
  return a == Dtype::kDouble || b == Dtype::kDouble ? Dtype::kDouble : Dtype::kFloat;
}

// The shape to which both broadcast; none if they do not.
std::optional<Dims> broadcast(const Dims& a, const Dims& b) {
  const Dims& more = a.size() < b.size() ? b : a;
  const Dims& fewer = a.size() < b.size() ? a : b;
  Dims shape = more;
  for (uint64_t k = more.size() - fewer.size(), i = 0; i < fewer.size(); ++k, ++i) {
    if (shape[k] == 1) shape[k] = fewer[i];
    if (fewer[i] != 1 && fewer[i] != shape[k]) return std::nullopt;
  }
  return shape;
}

void infer(Call& call) {
  const Tensor &dy = call[kGradOutput].tensor, &x = call[kX].tensor;
  if (call.given(kGradInput)) return;
  call[kGradInput].tensor =
      contiguous_tensor(promoted(dy.dtype, x.dtype), broadcast(dy.shape, x.shape).value_or(x.shape));
}

template <class T>
void plan_kernel(const Call& call, int out, const GeluShape& shape, bool by_tanh, Plan& plan) {
  const StagedRows dy = stage_broadcast(call, plan, kGradOutput, shape, kElementOf<T>);
  const StagedRows x = stage_broadcast(call, plan, kX, shape, kElementOf<T>);
  const StagedOutput dx = StagedOutput::rows(call, plan, out, shape.leading, shape.columns, kElementOf<T>);
  const int64_t rows = shape.rows, columns = shape.columns;
  plan.step("gelu_backward", 3.0 * rows * columns * sizeof(T), [=, staged = dx.staged()](const Addresses& addresses) {
    kernels::gelu_backward_v2<T>(
        {rows, columns, {dy.at<const T>(addresses), x.at<const T>(addresses)}, {staged.at<T>(addresses)}}, by_tanh);
  });
  dx.finish(call, plan);
}

Status check_and_plan(const Call& call, int out, bool by_tanh, Plan* plan) {
  const Dims &dy = call[kGradOutput].tensor.shape, &x = call[kX].tensor.shape;
  const auto shape = broadcast(dy, x);
  if (!shape) {
    return call.fail(Code::kParamInvalid, call.name(kGradOutput), " has shape ", to_string(dy), ", and ", call.name(kX),
                     " ", to_string(x), ", but they must broadcast to one shape.");
  }
  DESCEND_RETURN_IF_ERROR(check_gelu_shape(call, out, *shape, "to which the inputs broadcast"));
  if (plan == nullptr || call[out].tensor.empty()) return {};
  with_element_type(kernel_element(call, kX, {kGradOutput, out}),
                    [&]<class T>(T) { plan_kernel<T>(call, out, GeluShape(*shape), by_tanh, *plan); });
  return {};
}

Status validate_and_plan(const Call& call, Plan* plan) {
  const std::string& form = call[kApproximate].text;
  if (form != "none" && form != "tanh") {
    return call.fail(Code::kParamInvalid, call.name(kApproximate), " is \"", form, "\", but must be none or tanh.");
  }
  return check_and_plan(call, kGradInput, form == "tanh", plan);
}

Status plan_gelu_backward(const Call& call, Plan* plan) { return check_and_plan(call, kApproximate, true, plan); }

constexpr DtypeSet kSixteen{Dtype::kFloat16, Dtype::kBfloat16};
}  // namespace

extern const Operator gelu_backward_v2{
    .name = "gelu_backward_v2",
    .c_name = "aclnnGeluBackwardV2",
    .summary = "Gradient of GELU with respect to its input.",
    .formula =
        "gradInput = gradOutput * (Phi(x) + x * exp(-x^2 / 2) / sqrt(2 pi))          x = self; approximate none\n"
        "gradInput = gradOutput * (s + x * s * (1 - s) * u')                         approximate tanh\n"
        "            u = 2 sqrt(2 / pi) * (x + 0.044715 * x^3)    u' = 2 sqrt(2 / pi) * (1 + 3 * 0.044715 * x^2)\n"
        "            s = sigmoid(u) = (1 + tanh(u / 2)) / 2",
    .source = "aclnnGeluBackwardV2",
    .notes =
        "Strided and empty tensors are fine. gradOutput and self may also be of different shapes that broadcast to "
        "one, and of different dtypes: gradInput is then FLOAT. host also takes DOUBLE and any mix of floating dtypes.",
    .products = kGeluProducts,
    .parameters = {{"gradOutput", "grad_output", Kind::kTensor, Role::kInput, false, nullptr, false, "as self",
                    "Gradient of the loss with respect to the forward's result; may broadcast with self."},
                   {"self", "x", Kind::kTensor, Role::kInput, false, nullptr, false, "[A1, ..., An], rank 0 to 8",
                    "Input of the forward."},
                   {.name = "approximate",
                    .python = "approximate",
                    .kind = Kind::kString,
                    .role = Role::kAttribute,
                    .optional = false,
                    .default_value = "\"none\"",
                    .keyword_only = false,
                    .shape = "",
                    .description = "none, by erf, or tanh.",
                    .taken = {"none", "tanh"}},
                   output_of("gradInput", "grad_input", "as self", "Gradient with respect to self.")},
    .dtypes = {{kWithBfloat16 | kWithoutBfloat16, {kFloat32Only, kFloat32Only, kFloat32Only}},
               {kWithBfloat16 | kWithoutBfloat16, {kFloat16Only, kFloat16Only, kFloat16Only}},
               {kWithBfloat16, {kBfloat16Only, kBfloat16Only, kBfloat16Only}},
               {kWithoutBfloat16, {kFloat32Only, kFloat16Only, kFloat32Only}},
               {kWithoutBfloat16, {kFloat16Only, kFloat32Only, kFloat32Only}},
               {kWithBfloat16, {kFloat32Only, kSixteen, kFloat32Only}},
               {kWithBfloat16, {kSixteen, kFloat32Only, kFloat32Only}},
               {kWithBfloat16, {kFloat16Only, kBfloat16Only, kFloat32Only}},
               {kWithBfloat16, {kBfloat16Only, kFloat16Only, kFloat32Only}},
               {ProductSet(Product::kHost), {kAllFloats, kAllFloats, kAllFloats}}},
    .errors = errors_of("gradOutput, self, approximate or gradInput is null",
                        "dtypes outside the table; a private format; a view outside its storage; an output that "
                        "overlaps another tensor other than exactly; shapes of gradOutput and self that do not "
                        "broadcast, or another one of gradInput; approximate other than none and tanh"),
    .infer = infer,
    .validate_and_plan = validate_and_plan,
    .variants = variants,
};

namespace {

std::span<const Operator* const> variants() {
  static const Operator gelu_backward = [] {
    Operator op = gelu_backward_v2;
    op.variants = nullptr;
    op.name = "gelu_backward";
    op.c_name = "aclnnGeluBackward";
    op.summary = "The same with tanh. gradInput may have any of the dtypes; gradOutput also INT32.";
    op.source = op.c_name;
    op.parameters.erase(op.parameters.begin() + kApproximate);
    // Its checks take a gradOutput that promotes to one of these, as that of its page's program does.
    constexpr DtypeSet narrow = kFloat32Only | kFloat16Only, integers{Dtype::kInt32};
    op.dtypes = {{kWithoutBfloat16, {narrow | integers, narrow, narrow}},
                 {kWithBfloat16, {kDeviceFloats | integers, kDeviceFloats, kDeviceFloats}},
                 {ProductSet(Product::kHost), {kAllFloats | integers, kAllFloats, kAllFloats}}};
    op.const_outputs = true;
    op.infer = nullptr;
    op.validate_and_plan = plan_gelu_backward;
    return op;
  }();
  static const Operator* const list[] = {&gelu_backward};
  return list;
}

}  // namespace
}  // namespace descend
