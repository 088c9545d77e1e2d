#include "operators/cross_entropy_shape.h"

namespace descend {
namespace {

constexpr const char* kReductions[] = {"mean", "sum", "none"};

Status check_shape(const Call& call, int i, const Dims& expected, Code code, const char* rule) {
  const Dims& given = call[i].tensor.shape;
  if (given == expected) return {};
  return call.fail(code, call.name(i), " has shape ", to_string(given), ", but must have ", to_string(expected), ", ",
                   rule, ".");
}

}  // namespace

Parameter reduction_parameter() {
  return {.name = "reductionOptional",
          .python = "reduction",
          .kind = Kind::kString,
          .role = Role::kAttribute,
          .optional = true,
          .default_value = "\"mean\"",
          .keyword_only = false,
          .shape = "",
          .description = "mean, sum or none; null: mean.",
          .taken = {"mean", "sum", "none"}};
}

Parameter ignore_index_parameter() {
  return {"ignoreIndex",
          "ignore_index",
          Kind::kInt,
          Role::kAttribute,
          false,
          "-100",
          false,
          "",
          "The target of rows that count for nothing."};
}

Parameter label_smoothing_parameter() {
  return {"labelSmoothing",
          "label_smoothing",
          Kind::kFloat,
          Role::kAttribute,
          false,
          "0.0",
          false,
          "",
          "s, the part of the target that is shared among all classes, from 0 to 1."};
}

Parameter zloss_scale_parameter() {
  return {"lseSquareScaleForZloss",
          "lse_square_scale_for_zloss",
          Kind::kFloat,
          Role::kAttribute,
          false,
          "0.0",
          false,
          "",
          "The factor of zloss. On host alone; Atlas products take no notice of it."};
}

std::vector<DtypeRow> cross_entropy_dtypes(size_t tensors, size_t target, DtypeSet targets) {
  const auto row = [&](ProductSet products, DtypeSet dtypes, DtypeSet weight, DtypeSet integers) {
    DtypeRow made{products, std::vector<DtypeSet>(tensors, dtypes)};
    made.sets[target] = integers;
    made.sets[target + 1] = weight;
    return made;
  };
  constexpr DtypeSet integers{Dtype::kInt32, Dtype::kInt64};
  return {row(kCrossEntropyAtlas, {Dtype::kFloat}, kFloat32Only, targets),
          row(kCrossEntropyAtlas, {Dtype::kFloat16}, kFloat32Only, targets),
          row(kCrossEntropyAtlas, {Dtype::kBfloat16}, kFloat32Only, targets),
          row(ProductSet(Product::kHost), kAllFloats, kAllFloats, integers)};
}

kernels::Reduction reduction_of(const Call& call, int i) {
  if (!call.given(i) || call[i].text == "mean") return kernels::Reduction::kMean;
  return call[i].text == "sum" ? kernels::Reduction::kSum : kernels::Reduction::kNone;
}

Status check_cross_entropy(const Call& call, const CrossEntropyParameters& p) {
  const Dims& scores = call[p.scores].tensor.shape;
  if (scores.size() != 2 || scores[1] == 0) {
    return call.fail(Code::kTilingError, call.name(p.scores), " has shape ", to_string(scores),
                     ", but must have rank 2, [N, C], with C at least 1.");
  }
  const std::string of_scores = std::string(" of ") + call.name(p.scores) + ", which has shape " + to_string(scores);
  const std::string rows = "the first dimension" + of_scores, classes = "the last dimension" + of_scores;
  DESCEND_RETURN_IF_ERROR(check_shape(call, p.target, {scores[0]}, Code::kTilingError, rows.c_str()));
  if (call.given(p.weight)) {
    DESCEND_RETURN_IF_ERROR(check_shape(call, p.weight, {scores[1]}, Code::kTilingError, classes.c_str()));
  }
  const std::string& reduction = call[p.reduction].text;
  if (call.given(p.reduction) &&
      std::find(std::begin(kReductions), std::end(kReductions), reduction) == std::end(kReductions)) {
    return call.fail(Code::kTilingError, call.name(p.reduction), " is \"", reduction,
                     "\", but must be mean, sum or none.");
  }
  const double smoothing = call[p.label_smoothing].real;
  if (!(0 <= smoothing && smoothing <= 1)) {
    return call.fail(Code::kTilingError, call.name(p.label_smoothing), " is ", smoothing, ", but must be from 0 to 1.");
  }
  return {};
}

Status check_row_numbers(const Call& call, const CrossEntropyParameters& p, int i, Code code) {
  const std::string rule = std::string("a number for each row of ") + call.name(p.scores);
  return check_shape(call, i, {call[p.scores].tensor.shape[0]}, code, rule.c_str());
}

Status check_loss_shape(const Call& call, const CrossEntropyParameters& p, int i, Code code) {
  if (reduction_of(call, p.reduction) == kernels::Reduction::kNone) return check_row_numbers(call, p, i, code);
  const Dims& shape = call[i].tensor.shape;
  if (shape.empty()) return {};
  return check_shape(call, i, {1}, code, "or no dimension, as it is reduced");
}

kernels::Element element_of_scores(const Call& call, const CrossEntropyParameters& p, int result) {
  const Dtype scores = call[p.scores].tensor.dtype, other = result < 0 ? scores : call[result].tensor.dtype;
  const bool has_double_weight = call.given(p.weight) && call[p.weight].tensor.dtype == Dtype::kDouble;
  if (scores == Dtype::kDouble || other == Dtype::kDouble || has_double_weight) return kernels::Element::kFloat64;
  return scores == other ? element_of(scores) : kernels::Element::kFloat32;
}

StagedTargets stage_targets(const Call& call, const CrossEntropyParameters& p) {
  const Tensor& tensor = call[p.target].tensor;
  const kernels::Targets targets{.data = nullptr,
                                 .stride = tensor.strides[0],
                                 .is_wide = tensor.dtype == Dtype::kInt64,
                                 .classes = call[p.scores].tensor.shape[1],
                                 .ignored = call[p.ignore_index].integer};
  return {Plan::tensor(call, p.target), targets};
}

}  // namespace descend
