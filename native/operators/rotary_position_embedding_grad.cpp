// aclnnRotaryPositionEmbeddingGrad: contract and plan.
#include "operators/rotary_shape.h"

namespace descend::kernels {
template <class T>
void rotary_position_embedding(const Turn<T>& problem, bool back);
template <class T>
void rotary_position_embedding_grad(const RotaryGrad<T>& problem);
}  // namespace descend::kernels

namespace descend {
namespace {

enum { kDy, kCos, kSin, kX, kMode, kDx, kDcos, kDsin };

// The gradients of cos and sin, which are not computed without x.
bool has_sums(const Call& call) { return call[kX].state != Argument::State::kNull; }

bool counts(const Call& call, int i) { return (i != kDcos && i != kDsin) || has_sums(call); }

const RotaryParameters& parameters(const Call& call) {
  static const RotaryParameters alone{kDy, kCos, kSin, kMode, {kDx}, {}, false, false},
      all{kDy, kCos, kSin, kMode, {kX, kDx}, {kDcos, kDsin}, true, false};
  return has_sums(call) ? all : alone;
}

void infer(Call& call) {
  for (const auto& [gradient, of] : {std::pair{kDx, kDy}, std::pair{kDcos, kCos}, std::pair{kDsin, kSin}}) {
    const Tensor& tensor = call[of].tensor;
    if (!call.given(gradient)) call[gradient].tensor = contiguous_tensor(tensor.dtype, tensor.shape);
  }
}

// On Atlas products outputs must be given, even if they are not written.
Status validate_first(const Call& call) {
  if (call.on_host()) return {};
  for (const int i : {kDcos, kDsin}) {
    if (call[i].state != Argument::State::kNull) continue;
    return call.fail(Code::kParamNullptr, call.name(i), " is null, but must be given.");
  }
  return {};
}

template <class T>
void plan_kernel(const Call& call, Plan& plan) {
  const RotaryParameters& p = parameters(call);
  const auto [columns, pairing] = rotary_rows(call, p);
  const bool apart = pairing == kernels::Pairing::kMixed;  // an element's place is not the same in all tensors
  const auto input = [&](int i) { return stage_grid(call, plan, i, kElementOf<T>, apart); };
  const auto output = [&](int i) { return StagedOutput::grid(call, plan, i, kElementOf<T>); };
  const StagedGrid dy = input(kDy), cos = input(kCos), sin = input(kSin);
  const StagedOutput dx = output(kDx);
  const double bytes = 1.0 * call[kDy].tensor.elements() * sizeof(T);
  const Place places[] = {dy.place, cos.place, sin.place, dx.place()};
  std::vector<Dims> strides{dy.strides, cos.strides, sin.strides, dx.strides(call)};
  std::vector<bool> is_cos{false, true, true, false};
  if (!has_sums(call)) {
    using Problem = kernels::Turn<T>;
    const auto grid = rotary_grid<decltype(Problem::grid)>(call, p, strides, is_cos);
    plan.step("rotary_position_embedding_grad", 2 * bytes, [=, place = std::to_array(places)](const Addresses& a) {
      const auto at = [&](int i) { return a.at<T>(place[i]); };
      kernels::rotary_position_embedding<T>({grid, columns, pairing, at(0), at(1), at(2), at(3)}, true);
    });
    return dx.finish(call, plan);
  }
  using Problem = kernels::RotaryGrad<T>;
  const StagedGrid x = input(kX);
  const StagedOutput dcos = output(kDcos), dsin = output(kDsin);
  for (const Dims& more : {x.strides, dcos.strides(call), dsin.strides(call)}) strides.push_back(more);
  for (const bool more : {false, true, true}) is_cos.push_back(more);
  const auto grid = rotary_grid<typename Problem::Grid>(call, p, strides, is_cos);
  const Place slots = plan.scratch(kernels::cut_rotary_grad<T>(grid).slots(), columns, sizeof(double));
  plan.step("rotary_position_embedding_grad", 3 * bytes,
            [=, place = std::to_array(places), from = x.place, to_cos = dcos.place(),
             to_sin = dsin.place()](const Addresses& a) {
              const auto at = [&](const Place& of) { return a.at<T>(of); };
              kernels::rotary_position_embedding_grad<T>({.grid = grid,
                                                          .columns = columns,
                                                          .pairing = pairing,
                                                          .dy = at(place[0]),
                                                          .cos = at(place[1]),
                                                          .sin = at(place[2]),
                                                          .x = at(from),
                                                          .dx = at(place[3]),
                                                          .dcos = at(to_cos),
                                                          .dsin = at(to_sin),
                                                          .element = kElementOf<T>,
                                                          .slots = a.at<double>(slots)});
            });
  for (const StagedOutput* one : {&dx, &dcos, &dsin}) one->finish(call, plan);
}

Status validate_and_plan(const Call& call, Plan* plan) {
  const RotaryParameters& p = parameters(call);
  DESCEND_RETURN_IF_ERROR(check_rotary(call, p));
  if (plan == nullptr || (call[kDy].tensor.empty() && (!has_sums(call) || call[kCos].tensor.empty()))) return {};
  const auto element = has_sums(call) ? kernel_element(call, kDy, {kCos, kSin, kX, kDx, kDcos, kDsin})
                                      : kernel_element(call, kDy, {kCos, kSin, kDx});
  with_element_type(element, [&]<class T>(T) { plan_kernel<T>(call, *plan); });
  return {};
}

}  // namespace

extern const Operator rotary_position_embedding_grad{
    .name = "rotary_position_embedding_grad",
    .c_name = "aclnnRotaryPositionEmbeddingGrad",
    .summary = "Gradients of rotary position embedding with respect to its input, and to the cosines and sines.",
    .formula =
        "dx_a   = dy_a * cos_a + dy_b * sin_b              a, b: the two members of each pair\n"
        "dx_b   = dy_b * cos_b - dy_a * sin_a\n"
        "dcos   = sum over what cos is broadcast to of dy * x\n"
        "dsin_a = sum over the same of -dy_a * x_b\n"
        "dsin_b = sum over the same of dy_b * x_a",
    .source = "aclnnRotaryPositionEmbeddingGrad",
    .notes =
        "Without x, which is optional, dcos and dsin are not computed: their tensors are neither checked nor written, "
        "but on Atlas products they must be given. The mode tells where the members of a pair are; in mode 3 dcos is "
        "the sum of dy and of x's members one half after the other. Strided and empty tensors are fine: where nothing "
        "is summed dcos and dsin are 0. On Atlas products the shapes are those of the forward, and with x batch * "
        "heads is at most 1024 in mode 0, but for ascend-950. host takes any rank from 1 to 8, any sizes, cos and sin "
        "of size 1 wherever, DOUBLE, and any mix of floating dtypes.",
    .products = kRotaryProducts,
    .parameters = {input_of("dy", kRotaryShape, "Gradient of the loss with respect to the forward's result."),
                   input_of("cos", kRotaryCosShape, "Cosines of the forward."),
                   input_of("sin", "as cos", "Sines of the forward."),
                   {"xOptional", "x", Kind::kTensor, Role::kInput, true, "None", false, "as dy",
                    "Input of the forward; null: dcos and dsin are not computed."},
                   {"mode", "mode", Kind::kInt, Role::kAttribute, false, "0", false, "", kRotaryModes},
                   output_of("dxOut", "dx_out", "as dy", "Gradient with respect to x."),
                   output_of("dcosOut", "dcos_out", "as cos", "Gradient with respect to cos."),
                   output_of("dsinOut", "dsin_out", "as cos", "Gradient with respect to sin.")},
    .dtypes = rotary_dtypes(7),
    .errors = {{Code::kParamNullptr,
                "dy, cos, sin, dxOut, dcosOut or dsinOut is null; on host without x the last two "
                "may be"},
               {Code::kParamInvalid,
                "dtypes outside the table or different from each other; a private format; a view outside its storage; "
                "an output that overlaps another tensor other than exactly"},
               {Code::kTilingError, "shapes, and mode"},
               {Code::kFindKernelError, "the product has no such operator"}},
    .infer = infer,
    .validate_and_plan = validate_and_plan,
    .counts = counts,
    .validate_first = validate_first,
    .const_outputs = true,
};

}  // namespace descend
