// aclnnApplyAdamWV2, and aclnnApplyAdamW, which has its numbers in tensors: contract and plan.
#include "kernels/apply_adam_w_v2.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "operators/registry.h"
#include "operators/staging.h"

namespace descend {
namespace {

enum {
  kVar,
  kM,
  kV,
  kMost,
  kGrad,
  kStep,
  kLr,
  kBeta1,
  kBeta2,
  kDecay,
  kEps,
  kAmsgrad,
  kMaximize,
  kVarOut,
  kMOut,
  kVOut,
  kMostOut
};

// Of aclnnApplyAdamW, which does not write the largest v. Its numbers stand from kPower1 to kOldEps.
enum {
  kPower1 = kV + 1,
  kPower2,
  kOldLr,
  kOldDecay,
  kOldBeta1,
  kOldBeta2,
  kOldEps,
  kOldGrad,
  kOldMost,
  kOldAmsgrad,
  kOldMaximize,
  kOldVarOut,
  kOldMOut,
  kOldVOut
};

// Where a function has its tensors; -1: nowhere.
struct Places {
  int in[5];   // var, m, v, the largest v, grad
  int out[4];  // var, m, v, the largest v
  int amsgrad;
};
constexpr Places kPlaces{{kVar, kM, kV, kMost, kGrad}, {kVarOut, kMOut, kVOut, kMostOut}, kAmsgrad};
constexpr Places kOldPlaces{{kVar, kM, kV, kOldMost, kOldGrad}, {kOldVarOut, kOldMOut, kOldVOut, -1}, kOldAmsgrad};

std::span<const Operator* const> variants();

bool computes(const Call& call, int i) { return (i != kMost && i != kMostOut) || call[kAmsgrad].flag; }

// A largest v that is given is checked, be it used or not.
bool counts(const Call& call, int i) { return computes(call, i) || call.given(i); }

void infer(Call& call) {
  for (const int i : {kVarOut, kMOut, kVOut, kMostOut}) {
    const int input = call.op->parameters[i].in_place_of;
    const Tensor& from = call[call.given(input) ? input : kV].tensor;
    if (!call.given(i)) call[i].tensor = contiguous_tensor(from.dtype, from.shape);
  }
}

// The call with its dimensions in the order in which var has them in memory, so that what has no gaps is one row.
Call in_order(const Call& call, const Places& places) {
  Call turned = call;
  const Tensor& var = call[kVar].tensor;
  std::vector<uint64_t> order(var.rank());
  std::iota(order.begin(), order.end(), 0);
  const auto step = [&](uint64_t d) {
    return var.shape[d] == 1 ? std::numeric_limits<int64_t>::max() : std::abs(var.strides[d]);
  };
  std::stable_sort(order.begin(), order.end(), [&](uint64_t a, uint64_t b) { return step(a) > step(b); });
  const auto turn = [&](int i) {
    if (i < 0 || !call.given(i)) return;
    for (uint64_t d = 0; d < order.size(); ++d) {
      turned[i].tensor.shape[d] = call[i].tensor.shape[order[d]];
      turned[i].tensor.strides[d] = call[i].tensor.strides[order[d]];
    }
  };
  std::for_each(std::begin(places.in), std::end(places.in), turn);
  std::for_each(std::begin(places.out), std::end(places.out), turn);
  return turned;
}

double number_at(const void* place, Dtype dtype) {
  if (dtype == Dtype::kInt32) return static_cast<double>(*static_cast<const int32_t*>(place));
  if (dtype == Dtype::kInt64) return static_cast<double>(*static_cast<const int64_t*>(place));
  double number;
  kernels::convert_span(element_of(dtype), place, kernels::Element::kFloat64, &number, 1);
  return number;
}

// `numbers` gives those of a run, from its addresses.
template <class W, bool kHasMost, class Numbers>
void plan_kernel(const Call& call, const Places& places, Numbers numbers, Plan& plan) {
  constexpr int kIn = 4 + kHasMost, kOut = 3 + kHasMost;
  struct Stream {
    Place place;
    int64_t stride;
    kernels::Element type;
  };
  struct Streams {
    int64_t rows, columns;
    Stream in[kIn], out[kOut];
  };
  const Dims& shape = call[kVar].tensor.shape;
  const uint64_t leading = shape.empty() ? 0 : shape.size() - 1;
  Streams s{};
  s.columns = shape.empty() ? 1 : shape[leading];
  s.rows = call[kVar].tensor.elements() / s.columns;
  const auto type_of = [&](int i) { return element_of(call[i].tensor.dtype); };
  for (int k = 0; k < kIn; ++k) {
    const int i = places.in[k < 3 || kHasMost ? k : 4];
    const kernels::Element type = type_of(i);
    const StagedRows rows = stage_rows(call, plan, i, leading, s.columns, type);
    s.in[k] = {rows.place, rows.stride, type};
  }
  StagedOutput outputs[kOut];
  for (int k = 0; k < kOut; ++k) {
    const int i = places.out[k];
    if (i < 0) {  // nobody asked for it
      const kernels::Element type = type_of(places.in[k]);
      s.out[k] = {plan.scratch(s.rows, s.columns, dtype_size(call[places.in[k]].tensor.dtype)), s.columns, type};
      continue;
    }
    const kernels::Element type = type_of(i);
    outputs[k] = StagedOutput::rows(call, plan, i, leading, s.columns, type);
    const StagedRows rows = outputs[k].staged();
    s.out[k] = {rows.place, rows.stride, type};
  }
  const double bytes = 1.0 * (kIn + kOut) * s.rows * s.columns * sizeof(W);
  plan.step("apply_adam_w", bytes, [=](const Addresses& addresses) {
    const auto at = [&](const Stream& stream) {
      return kernels::AnyRows{addresses.at<void>(stream.place), stream.stride, stream.type};
    };
    kernels::MixedElements<W, kIn, kOut> problem{.rows = s.rows, .columns = s.columns, .in = {}, .out = {}};
    std::transform(s.in, s.in + kIn, problem.in, at);
    std::transform(s.out, s.out + kOut, problem.out, at);
    if constexpr (kHasMost) {
      kernels::apply_adam_w_v2_amsgrad<W>(problem, numbers(addresses));
    } else {
      kernels::apply_adam_w_v2<W>(problem, numbers(addresses));
    }
  });
  for (int k = 0; k < kOut; ++k) {
    if (places.out[k] >= 0) outputs[k].finish(call, plan);
  }
}

template <class Numbers>
void plan_step(const Call& call, const Places& places, Numbers numbers, Plan& plan) {
  const bool most = call[places.amsgrad].flag;
  const auto is_wide = [&](int i) {
    return i >= 0 && call.given(i) && (most || i != places.in[3]) && (most || i != places.out[3]) &&
           call[i].tensor.dtype == Dtype::kDouble;
  };
  const bool wide = std::any_of(std::begin(places.in), std::end(places.in), is_wide) ||
                    std::any_of(std::begin(places.out), std::end(places.out), is_wide);
  const auto make_plan = [&](const Call& one) {
    if (wide) {
      return most ? plan_kernel<double, true>(one, places, numbers, plan)
                  : plan_kernel<double, false>(one, places, numbers, plan);
    }
    return most ? plan_kernel<float, true>(one, places, numbers, plan)
                : plan_kernel<float, false>(one, places, numbers, plan);
  };
  is_contiguous(call[kVar].tensor) ? make_plan(call) : make_plan(in_order(call, places));
}

Status check_one_element(const Call& call, int i) {
  if (call[i].tensor.elements() == 1) return {};
  return call.fail(Code::kParamInvalid, call.name(i), " has shape ", to_string(call[i].tensor.shape),
                   ", but must have one element.");
}

Status validate_and_plan(const Call& call, Plan* plan) {
  for (const int i : {kM, kV, kMost, kGrad, kVarOut, kMOut, kVOut, kMostOut}) {
    if (counts(call, i)) DESCEND_RETURN_IF_ERROR(check_same_shape(call, i, kVar));
    const int input = call.op->parameters[i].in_place_of;
    if (call.on_host() || input < 0 || !counts(call, i) || !call.given(input)) continue;
    if (call[i].tensor.dtype == call[input].tensor.dtype) continue;
    return call.fail(Code::kParamInvalid, call.name(i), " has dtype ", dtype_name(call[i].tensor.dtype),
                     ", but must have that of ", call.name(input), ", ", dtype_name(call[input].tensor.dtype), ", on ",
                     info(call.product).name, ".");
  }
  DESCEND_RETURN_IF_ERROR(check_one_element(call, kStep));
  if (plan == nullptr || call[kVar].tensor.empty()) return {};
  const kernels::AdamWNumbers given{.lr = call[kLr].real,
                                    .beta1 = call[kBeta1].real,
                                    .beta2 = call[kBeta2].real,
                                    .weight_decay = call[kDecay].real,
                                    .eps = call[kEps].real,
                                    .maximize = call[kMaximize].flag};
  const auto numbers = [given, step = Plan::tensor(call, kStep),
                        dtype = call[kStep].tensor.dtype](const Addresses& addresses) {
    kernels::AdamWNumbers now = given;
    now.t = number_at(addresses.at<void>(step), dtype) + 1;
    return now;
  };
  plan_step(call, kPlaces, numbers, *plan);
  return {};
}

bool old_computes(const Call& call, int i) { return i != kOldMost || call[kOldAmsgrad].flag; }
bool old_counts(const Call& call, int i) { return old_computes(call, i) || call.given(i); }

Status validate_and_plan_old(const Call& call, Plan* plan) {
  for (const int i : {int{kM}, int{kV}, int{kOldGrad}, int{kOldMost}}) {
    if (old_counts(call, i)) DESCEND_RETURN_IF_ERROR(check_same_shape(call, i, kVar));
  }
  for (int i = kPower1; i <= kOldEps; ++i) DESCEND_RETURN_IF_ERROR(check_one_element(call, i));
  if (plan == nullptr || call[kVar].tensor.empty()) return {};
  struct Number {
    Place place;
    Dtype dtype;
  };
  std::array<Number, kOldEps + 1> at{};
  for (int i = kPower1; i <= kOldEps; ++i) at[i] = {Plan::tensor(call, i), call[i].tensor.dtype};
  const auto numbers = [at, maximize = call[kOldMaximize].flag](const Addresses& addresses) {
    const auto number = [&](int i) { return number_at(addresses.at<void>(at[i].place), at[i].dtype); };
    return kernels::AdamWNumbers{.lr = number(kOldLr),
                                 .beta1 = number(kOldBeta1),
                                 .beta2 = number(kOldBeta2),
                                 .weight_decay = number(kOldDecay),
                                 .eps = number(kOldEps),
                                 .maximize = maximize,
                                 .by_powers = true,
                                 .beta1_before = number(kPower1),
                                 .beta2_before = number(kPower2)};
  };
  plan_step(call, kOldPlaces, numbers, *plan);
  return {};
}

constexpr ProductSet kProducts(Product::kAtlasA3, Product::kAtlasA2Training, Product::kAtlasA2Inference,
                               Product::kAscend950);

std::vector<DtypeRow> dtype_rows() {
  const auto row = [](ProductSet products, DtypeSet floats, DtypeSet step) {
    return DtypeRow{products, {floats, floats, floats, floats, floats, step, floats, floats, floats, floats}};
  };
  const DtypeSet step{Dtype::kFloat, Dtype::kInt64};
  return {row(kProducts, kDeviceFloats, step),
          row(ProductSet(Product::kHost), kAllFloats, step | kAllFloats | DtypeSet{Dtype::kInt32})};
}

Parameter named(const char* python, Parameter parameter) {
  parameter.python = python;
  return parameter;
}

Parameter real_of(const char* name, const char* default_value, const char* description) {
  Parameter parameter = number_of(name, default_value, description);
  parameter.c_type = "float";
  return parameter;
}

Parameter flag_of(const char* name, const char* description) {
  return {name, name, Kind::kBool, Role::kAttribute, false, "False", false, "", description};
}

std::vector<Parameter> parameters() {
  std::vector<Parameter> list{
      named("var", input_of("varRef", "[A1, ..., An], rank 0 to 8", "The parameters.")),
      named("m", input_of("mRef", "as varRef", "The mean of the gradients, which decays.")),
      named("v", input_of("vRef", "as varRef", "The mean of their squares, which decays; not negative.")),
      named("max_grad_norm", input_of("maxGradNormOptionalRef", "as varRef",
                                      "The largest v so far; read with amsgrad alone, and needed then.")),
      input_of("grad", "as varRef", "The gradient."),
      input_of("step", "[1], rank 0 to 8", "How many steps were taken before this one, so 0 at the first; at least 0."),
      real_of("lr", "0.001", "The learning rate."),
      real_of("beta1", "0.9", "What m keeps."),
      real_of("beta2", "0.999", "What v keeps."),
      named("weight_decay", real_of("weightDecay", "0.01", "Times lr, the share that var loses.")),
      real_of("eps", "1e-08", "Added to the root."),
      flag_of("amsgrad", "Whether the largest v takes the place of v in the root."),
      flag_of("maximize", "Whether the gradient is negated."),
      output_in_place_of(kVar, "varRef", "var_out", "as varRef", "The new parameters."),
      output_in_place_of(kM, "mRef", "m_out", "as varRef", "The new mean of the gradients."),
      output_in_place_of(kV, "vRef", "v_out", "as varRef", "The new mean of their squares."),
      output_in_place_of(kMost, "maxGradNormOptionalRef", "max_grad_norm_out", "as varRef",
                         "The new largest v, with amsgrad."),
  };
  list[kMost].optional_if_unused = list[kMostOut].optional_if_unused = true;
  return list;
}

}  // namespace

extern const Operator apply_adam_w_v2{
    .name = "apply_adam_w_v2",
    .c_name = "aclnnApplyAdamWV2",
    .summary = "A step of AdamW: parameters, and the decaying means of gradients and of their squares.",
    .formula =
        "g   = grad, or -grad with maximize          t = step + 1\n"
        "m   = beta1 * m + (1 - beta1) * g\n"
        "v   = beta2 * v + (1 - beta2) * g^2\n"
        "u   = v, or with amsgrad max_grad_norm = max(max_grad_norm, v)\n"
        "var = (1 - lr * weight_decay) * var - lr * (m / (1 - beta1^t)) / (sqrt(u / (1 - beta2^t)) + eps)",
    .source = "aclnnApplyAdamWV2",
    .notes =
        "In C the results take the place of varRef, mRef, vRef and maxGradNormOptionalRef. In Python they are arrays "
        "of their own; given as out, the inputs are changed in place. Without amsgrad max_grad_norm may be None, is "
        "not touched, and there is no result for it. step counts the steps before: the operator adds 1, as torch_npu "
        "expects it to. Strided and empty tensors are fine. host also takes DOUBLE, any floating dtype and INT32 "
        "for step, and results of other dtypes than their inputs'.",
    .products = kProducts | ProductSet(Product::kHost),
    .parameters = parameters(),
    .dtypes = dtype_rows(),
    .errors = errors_of("varRef, mRef, vRef, grad or step is null, or with amsgrad maxGradNormOptionalRef",
                        "dtypes outside the table; a private format; a view outside its storage; an output that "
                        "overlaps another tensor other than exactly; shapes that differ; a step that has not one "
                        "element"),
    .infer = infer,
    .validate_and_plan = validate_and_plan,
    .counts = counts,
    .computes = computes,
    .variants = variants,
};

namespace {

std::span<const Operator* const> variants() {
  static const Operator old = [] {
    Operator op = apply_adam_w_v2;
    op.variants = nullptr;
    op.name = "apply_adam_w";
    op.c_name = "aclnnApplyAdamW";
    op.summary = "The same with its numbers in tensors, and the powers of the betas in the place of the step.";
    op.source = op.c_name;
    op.products = ProductSet(Product::kAscend950, Product::kHost);
    op.parameters.resize(kMost);
    const auto number = [&](const char* name, const char* description) {
      op.parameters.push_back(input_of(name, "[1]", description));
    };
    number("beta1Power", "beta1 to the number of steps before this one.");
    number("beta2Power", "beta2 to the same.");
    number("lr", "The learning rate.");
    number("weightDecay", "Times lr, the share that var loses.");
    number("beta1", "What m keeps.");
    number("beta2", "What v keeps.");
    number("eps", "Added to the root.");
    op.parameters.push_back(input_of("grad", "as varRef", "The gradient."));
    op.parameters.push_back(optional_if_unused(
        input_of("maxGradNormOptional", "as varRef", "The largest v so far; read with amsgrad alone.")));
    for (const int i : {kAmsgrad, kMaximize, kVarOut, kMOut, kVOut}) {
      op.parameters.push_back(apply_adam_w_v2.parameters[i]);
    }
    constexpr size_t kTensors = 15;
    op.dtypes.assign(1, {ProductSet(Product::kHost), std::vector<DtypeSet>(kTensors, kAllFloats)});
    for (const Dtype dtype : {Dtype::kFloat, Dtype::kFloat16, Dtype::kBfloat16}) {
      op.dtypes.push_back({ProductSet(Product::kAscend950), std::vector<DtypeSet>(kTensors, DtypeSet{dtype})});
    }
    op.infer = nullptr;
    op.counts = old_counts;
    op.computes = old_computes;
    op.validate_and_plan = validate_and_plan_old;
    return op;
  }();
  static const Operator* const list[] = {&old};
  return list;
}

}  // namespace
}  // namespace descend
