// aclnnRotaryPositionEmbedding: contract and plan.
#include "operators/rotary_shape.h"

namespace descend::kernels {
template <class T>
void rotary_position_embedding(const Turn<T>& problem, bool back);
}

namespace descend {
namespace {

enum { kX, kCos, kSin, kMode, kOut };

const RotaryParameters& parameters() {
  static const RotaryParameters at{kX, kCos, kSin, kMode, {kOut}, {}, false, true};
  return at;
}

void infer(Call& call) {
  const Tensor& x = call[kX].tensor;
  if (!call.given(kOut)) call[kOut].tensor = contiguous_tensor(x.dtype, x.shape);
}

template <class T>
void plan_kernel(const Call& call, Plan& plan) {
  using Problem = kernels::Turn<T>;
  const auto [columns, pairing] = rotary_rows(call, parameters());
  const bool apart = pairing == kernels::Pairing::kMixed;  // an element's place is not the same in x and out
  const auto input = [&](int i) { return stage_grid(call, plan, i, kElementOf<T>, apart); };
  const StagedGrid x = input(kX), cos = input(kCos), sin = input(kSin);
  const StagedOutput out = StagedOutput::grid(call, plan, kOut, kElementOf<T>);
  const auto grid = rotary_grid<decltype(Problem::grid)>(
      call, parameters(), {x.strides, cos.strides, sin.strides, out.strides(call)}, {false, true, true, false});
  const double bytes = 2.0 * call[kX].tensor.elements() * sizeof(T);
  plan.step("rotary_position_embedding", bytes,
            [=, from = x.place, c = cos.place, s = sin.place, to = out.place()](const Addresses& addresses) {
              const auto at = [&](Place place) { return addresses.at<T>(place); };
              kernels::rotary_position_embedding<T>({grid, columns, pairing, at(from), at(c), at(s), at(to)}, false);
            });
  out.finish(call, plan);
}

Status validate_and_plan(const Call& call, Plan* plan) {
  const Tensor& x = call[kX].tensor;
  DESCEND_RETURN_IF_ERROR(check_rotary(call, parameters()));
  if (plan == nullptr || x.empty()) return {};
  with_element_type(kernel_element(call, kX, {kCos, kSin, kOut}), [&]<class T>(T) { plan_kernel<T>(call, *plan); });
  return {};
}

}  // namespace

extern const Operator rotary_position_embedding{
    .name = "rotary_position_embedding",
    .c_name = "aclnnRotaryPositionEmbedding",
    .summary = "Rotary position embedding: each pair of a row's elements turned by an angle of its own.",
    .formula =
        "out_a = x_a * cos_a - x_b * sin_a        a, b: the two members of each pair\n"
        "out_b = x_b * cos_b + x_a * sin_b",
    .source = "aclnnRotaryPositionEmbedding",
    .notes =
        "The mode tells where the members of a pair are. cos and sin are broadcast along the dimensions in which they "
        "have size 1. Strided and empty tensors are fine. On Atlas products the shapes are those of the layouts BNSD, "
        "BSND, SBND and TND: cos and sin have size 1 for the heads or for batch and heads or for none, in mode 1 for "
        "both; D is less than 896, batch and heads less than 1000, in mode 1 their product. ascend-950 takes rank 4 "
        "with cos and sin of size 1 wherever, TND with those of each token, and D up to 1024. host takes any rank from "
        "1 to 8, any sizes, cos and sin of size 1 wherever, DOUBLE, and any mix of floating dtypes.",
    .products = kRotaryProducts,
    .parameters = {input_of("x", kRotaryShape, "What is turned: rows of D = 2 P elements."),
                   input_of("cos", kRotaryCosShape, "Cosines of the angles."),
                   input_of("sin", "as cos", "Sines of the angles."),
                   {"mode", "mode", Kind::kInt, Role::kAttribute, false, "0", false, "", kRotaryModes},
                   output_of("out", "out", "as x", "The result.")},
    .dtypes = rotary_dtypes(4),
    .errors = {{Code::kParamNullptr, "x, cos, sin or out is null"},
               {Code::kParamInvalid,
                "dtypes outside the table or different from each other; a private format; a view outside its storage; "
                "an output that overlaps another tensor other than exactly"},
               {Code::kTilingError, "shapes, and mode"},
               {Code::kFindKernelError, "the product has no such operator"}},
    .infer = infer,
    .validate_and_plan = validate_and_plan,
};

}  // namespace descend
