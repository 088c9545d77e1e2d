#include "operators/layer_norm_variants.h"

#include "operators/registry.h"

namespace descend {

namespace {

enum { kInput, kNormalizedShape, kWeight, kBias, kEpsilon, kOut, kMean, kRstd, kImplMode };

constexpr int64_t kKeepFloat16 = 2;
constexpr int64_t kMostColumns = 583705600;  // that aclnnFastLayerNorm takes, on every product but host

Status check_impl_mode(const Call& call) {
  const int64_t mode = call[kImplMode].integer;
  if (mode < 0 || mode > kKeepFloat16) {
    return call.fail(Code::kParamInvalid, call.name(kImplMode), " is ", mode, ", but must be 0, 1 or 2.");
  }
  if (mode != kKeepFloat16) return {};
  for (int i : {kInput, kWeight, kBias}) {
    const Tensor* tensor = call.tensor(i);
    if (tensor == nullptr || tensor->dtype == Dtype::kFloat16) continue;
    return call.fail(Code::kParamInvalid, call.name(i), " has dtype ", dtype_name(tensor->dtype),
                     ", but must be FLOAT16 where ", call.name(kImplMode), " is 2.");
  }
  return {};
}

Status plan_with_impl_mode(const Call& call, Plan* plan) {
  DESCEND_RETURN_IF_ERROR(layer_norm.validate_and_plan(call, nullptr));
  DESCEND_RETURN_IF_ERROR(check_impl_mode(call));
  return plan == nullptr ? Status{} : layer_norm.validate_and_plan(call, plan);
}

Status plan_fast(const Call& call, Plan* plan) {
  DESCEND_RETURN_IF_ERROR(layer_norm.validate_and_plan(call, nullptr));
  int64_t columns = 1;  // cannot overflow: the tensors exist
  for (const int64_t length : call[kNormalizedShape].list) columns *= length;
  if (columns > kMostColumns && !call.on_host()) {
    return call.fail(Code::kInnerNullptr, call.name(kNormalizedShape), " is ", to_string(call[kNormalizedShape].list),
                     ", but its product must be at most ", kMostColumns, " on ", info(call.product).name, ".");
  }
  return plan == nullptr ? Status{} : layer_norm.validate_and_plan(call, plan);
}

const Operator& layer_norm_with_impl_mode() {
  static const Operator variant = [] {
    Operator op = layer_norm;
    op.variants = nullptr;
    op.name = "layer_norm_with_impl_mode";
    op.c_name = "aclnnLayerNormWithImplMode";
    op.summary =
        "The same with a mode: implMode is 0 (high precision), 1 (high performance) or 2 (all in FLOAT16, only for "
        "inputs of that type). Each mode is computed with the precision of mode 0.";
    op.source = op.c_name;
    Parameter mode{"implMode",
                   "impl_mode",
                   Kind::kInt,
                   Role::kAttribute,
                   false,
                   "0",
                   false,
                   "",
                   "0: high precision, 1: high performance, 2: all in FLOAT16. Each is computed as 0."};
    mode.c_type = "int32_t";
    op.parameters.push_back(mode);
    op.validate_and_plan = plan_with_impl_mode;
    return op;
  }();
  return variant;
}

const Operator& fast_layer_norm() {
  static const Operator variant = [] {
    Operator op = layer_norm;
    op.variants = nullptr;
    op.name = "fast_layer_norm";
    op.c_name = "aclnnFastLayerNorm";
    op.summary = "The same operator. Fewer products have it.";
    op.source = op.c_name;
    op.products = ProductSet(Product::kAtlasA3, Product::kAtlasA2Training, Product::kAtlasA2Inference, Product::kHost);
    op.validate_and_plan = plan_fast;
    return op;
  }();
  return variant;
}

}  // namespace

std::span<const Operator* const> layer_norm_variants() {
  static const Operator* const variants[] = {&layer_norm_with_impl_mode(), &fast_layer_norm()};
  return variants;
}

}  // namespace descend
