#include "capi/op_types.h"

#include <string>

#include "capi/op_type_row.h"
#include "capi/state.h"
#include "operators/layer_norm_variance.h"
#include "operators/registry.h"

namespace descend::capi {
namespace {

Argument& argument(OpCall& call, const char* parameter) { return call.call[find_parameter(*call.call.op, parameter)]; }

void give(Argument& argument, const Dims& list) {
  argument.list = list;
  argument.state = Argument::State::kGiven;
}

// LayerNorm and LayerNormV3: the normalized dimensions are those from begin_norm_axis on.
Status normalize_from_axis(OpCall& call) {
  const Dims& x = argument(call, "input").tensor.shape;
  const auto rank = static_cast<int64_t>(x.size());
  for (int i : {0, 1}) {
    int64_t& axis = call.attributes[i].integer;
    const int64_t given = axis;
    if (axis < 0) axis += rank;
    if (0 <= axis && axis < rank) continue;
    return call.call.fail(kOpAttributeNotMatch, call.type.attributes[i].name, " is ", given, ", but x has shape ",
                          to_string(x), ".");
  }
  const int64_t axis = call.attributes[0].integer, parameters_axis = call.attributes[1].integer;
  if (parameters_axis != axis) {
    return call.call.fail(kOpAttributeNotMatch, "begin_params_axis is ", parameters_axis,
                          ", but must be begin_norm_axis, ", axis,
                          ": gamma and beta have the dimensions of x from there.");
  }
  give(argument(call, "normalizedShape"), x.slice(static_cast<uint64_t>(axis), x.size()));
  return {};
}

// LayerNormGrad and LayerNormGradV3: the normalized dimensions are the shape of gamma.
Status normalize_as_gamma(OpCall& call) {
  give(argument(call, "normalizedShape"), argument(call, "weightOptional").tensor.shape);
  return {};
}

Status complete_grad(OpCall& call) {
  give(argument(call, "outputMask"), {1, 1, 1});
  return normalize_as_gamma(call);
}

// By CANN's definition, masks other than [1, 1, 1] exist on Ascend 950 only.
Status complete_grad_v3(OpCall& call) {
  const Product product = call.call.product;
  const Dims& mask = argument(call, "outputMask").list;
  if (product != Product::kAscend950 && product != Product::kHost && mask != Dims{1, 1, 1}) {
    return call.call.fail(kOpAttributeNotMatch, "output_mask is ", to_string(mask), ", but must be [1, 1, 1] on ",
                          info(product).name, ".");
  }
  return normalize_as_gamma(call);
}

int64_t product_of(const Dims& dims) {
  int64_t product = 1;
  for (const int64_t dim : dims) product *= dim;
  return product;
}

// LayerNorm and GroupNorm return the variance. The operator computes rstd instead, so the variances are computed before
// it runs, and written over rstd afterwards.
Status give_variance_of(OpCall& call, const Tensor& x, const Tensor& out, int64_t columns) {
  const auto variances = std::make_shared<std::vector<double>>();
  call.around.before = [=, rows = out.elements()] { *variances = row_variances(x.dtype, x.data, rows, columns); };
  call.around.after = [=] {
    const int64_t count = out.elements();
    const kernels::Strided line{.rank = 1, .shape = {count}, .from_stride = {1}, .to_stride = {1}};
    kernels::convert(line, kernels::Element::kFloat64, variances->data(), element_of(out.dtype), out.data);
  };
  return {};
}

Status give_variance(OpCall& call) {
  return give_variance_of(call, argument(call, "input").tensor, argument(call, "rstdOutOptional").tensor,
                          product_of(argument(call, "normalizedShape").list));
}

// LayerNormGrad takes the variance. The operator takes rstd, which is computed from it into memory of this call. The
// epsilon is that of CANN's definition: larger for 16-bit dtypes on Ascend 950.
Status take_variance(OpCall& call) {
  Tensor& rstd = argument(call, "rstd").tensor;
  const Tensor variance = rstd;
  const bool wide = argument(call, "input").tensor.dtype == Dtype::kFloat;
  const double epsilon = call.call.product == Product::kAscend950 && !wide ? 1e-5f : 1e-12f;
  const Dtype dtype = variance.dtype == Dtype::kDouble ? Dtype::kDouble : Dtype::kFloat;
  const auto memory = std::make_shared<std::vector<double>>(static_cast<size_t>(variance.elements()));
  // A variance without memory is refused as any tensor is, so it stays without.
  rstd = contiguous_tensor(dtype, variance.shape, variance.data != nullptr ? memory->data() : nullptr);
  call.around.kept.push_back(memory);
  call.around.before = [=, to = memory->data()] {
    reciprocal_deviations(variance.elements(), variance.dtype, variance.data, epsilon, dtype, to);
  };
  return {};
}

// GeluV2's approximate is a string, that of aclnnGeluV2 a number.
Status number_of_form(OpCall& call) {
  const std::string& form = call.attributes[0].text;
  if (form != "none" && form != "tanh") {
    return call.call.fail(kOpAttributeNotMatch, "approximate is \"", form.substr(0, 100),
                          "\", but must be none or tanh.");
  }
  argument(call, "approximate").integer = form == "tanh";
  argument(call, "approximate").state = Argument::State::kGiven;
  return {};
}

// GroupNorm and its gradient have sizes from x, whose name in the operator is given.
Status give_sizes(OpCall& call, const char* parameter) {
  const Dims& x = argument(call, parameter).tensor.shape;
  if (x.size() < 2) {
    return call.call.fail(kOpAttributeNotMatch, "x has shape ", to_string(x), ", but must have rank 2 to 8.");
  }
  uint64_t inner = 1;  // it may overflow only where another dimension is 0, and is then refused
  for (const int64_t dim : x.slice(2, x.size())) inner *= static_cast<uint64_t>(dim);
  for (const auto& [name, size] : {std::pair{"N", x[0]}, {"C", x[1]}, {"HxW", static_cast<int64_t>(inner)}}) {
    argument(call, name).integer = size;
    argument(call, name).state = Argument::State::kGiven;
  }
  return {};
}

Status complete_group_norm(OpCall& call) { return give_sizes(call, "self"); }

// GroupNorm: a group is a row of a contiguous x.
Status give_variance_of_groups(OpCall& call) {
  const Tensor &x = argument(call, "self").tensor, &out = argument(call, "rstdOut").tensor;
  return give_variance_of(call, x, out, out.elements() == 0 ? 0 : x.elements() / out.elements());
}

// GroupNormGrad has three flags in the place of the mask.
Status complete_group_norm_grad(OpCall& call) {
  DESCEND_RETURN_IF_ERROR(give_sizes(call, "input"));
  const auto wanted = [&](int i) -> int64_t { return call.attributes[i].flag; };
  give(argument(call, "outputMask"), {wanted(2), wanted(3), wanted(4)});
  return {};
}

// The dimension is an attribute with a list of one.
Status dim_of_axes(OpCall& call) {
  const Dims& axes = call.attributes[0].list;
  if (axes.size() != 1) {
    return call.call.fail(kOpAttributeNotMatch, call.type.attributes[0].name, " is ", to_string(axes),
                          ", but must have one element.");
  }
  argument(call, "dim").integer = axes[0];
  argument(call, "dim").state = Argument::State::kGiven;
  return {};
}

OpType masked_softmax(const char* name) {
  return OpTypeRow(name, scaled_masked_softmax)
      .input("x", "x")
      .optional_input("mask", "mask")
      .output("y", "y")
      .real("scale", "scale", 1)
      .flag("fixed_triu_mask", "fixTriuMask", false);
}

OpType masked_softmax_grad(const char* name, const char* dy, const char* dx) {
  return OpTypeRow(name, scaled_masked_softmax_backward)
      .input(dy, "gradOutput")
      .input("y", "y")
      .optional_input("mask", "mask")
      .output(dx, "out")
      .real("scale", "scale", 1)
      .flag("fixed_triu_mask", "fixTriuMask", false);
}

// LayerNorm and LayerNormV3 differ in their last output and in epsilon's default.
OpTypeRow layer_norm_from_axis(const char* name, const char* last, float epsilon) {
  return OpTypeRow(name, layer_norm)
      .input("x", "input")
      .input("gamma", "weightOptional")
      .input("beta", "biasOptional")
      .output("y", "out")
      .output("mean", "meanOutOptional")
      .output(last, "rstdOutOptional")
      .integer("begin_norm_axis", nullptr, 0)
      .integer("begin_params_axis", nullptr, 0)
      .real("epsilon", "eps", epsilon)
      .complete(normalize_from_axis);
}

OpTypeRow layer_norm_grad(const char* name, const char* statistic) {
  return OpTypeRow(name, layer_norm_backward)
      .input("dy", "gradOut")
      .input("x", "input")
      .input(statistic, "rstd")
      .input("mean", "mean")
      .input("gamma", "weightOptional");
}

const std::vector<OpType>& op_types() {
  const DtypeSet int64{Dtype::kInt64};
  static const std::vector<OpType> types{
      masked_softmax("ScaledMaskedSoftmax"),
      masked_softmax("ScaledMaskedSoftmaxV2"),
      masked_softmax_grad("ScaledMaskedSoftmaxGrad", "y_grad", "x_grad"),
      masked_softmax_grad("ScaledMaskedSoftmaxGradV2", "yGrad", "xGrad"),
      OpTypeRow("SoftmaxV2", softmax)
          .input("x", "self")
          .output("y", "out")
          .integers("axes", nullptr, {-1})
          .makes("dim")
          .flag("half_to_float", nullptr, false)
          .complete(dim_of_axes),
      OpTypeRow("SoftmaxGrad", softmax_backward)
          .input("softmax", "output")
          .input("grad_softmax", "gradOutput")
          .output("grad_x", "out")
          .integers("axes", nullptr, {-1})
          .makes("dim")
          .complete(dim_of_axes),
      OpTypeRow("LogSoftmaxV2", log_softmax)
          .input("logits", "self")
          .output("logsoftmax", "out")
          .integers("axes", nullptr, {-1})
          .makes("dim")
          .complete(dim_of_axes),
      OpTypeRow("LogSoftmaxGrad", log_softmax_backward)
          .input("grad", "gradOutput")
          .input("x", "output")
          .output("y", "out")
          .integers("axis", nullptr, {-1})
          .makes("dim")
          .complete(dim_of_axes),
      layer_norm_from_axis("LayerNorm", "variance", 1e-7f).extend(give_variance),
      layer_norm_from_axis("LayerNormV3", "rstd", 1e-5f),
      OpTypeRow("LayerNormV4", layer_norm)
          .input("x", "input")
          .numbers("normalized_shape", "normalizedShape", {Dtype::kInt32, Dtype::kInt64}, false)
          .optional_input("gamma", "weightOptional")
          .optional_input("beta", "biasOptional")
          .output("y", "out")
          .output("mean", "meanOutOptional")
          .output("rstd", "rstdOutOptional")
          .real("epsilon", "eps", 1e-5f),
      layer_norm_grad("LayerNormGrad", "variance")
          .output("pd_x", "gradInputOut")
          .output("pd_gamma", "gradWeightOut")
          .output("pd_beta", "gradBiasOut")
          .complete(complete_grad)
          .extend(take_variance),
      layer_norm_grad("LayerNormGradV3", "rstd")
          .optional_output("pd_x", "gradInputOut")
          .optional_output("pd_gamma", "gradWeightOut")
          .optional_output("pd_beta", "gradBiasOut")
          .flags("output_mask", "outputMask", {1, 1, 1})
          .complete(complete_grad_v3),
      OpTypeRow::of_table("RmsNorm", rms_norm),
      OpTypeRow::of_table("RmsNormGrad", rms_norm_grad),
      OpTypeRow::of_table("AddRmsNorm", add_rms_norm),
      OpTypeRow::of_table("AddLayerNorm", add_layer_norm),
      OpTypeRow::of_table("AddLayerNormGrad", add_layer_norm_grad),
      OpTypeRow::of_table("DeepNorm", deep_norm),
      OpTypeRow::of_table("DeepNormGrad", deep_norm_grad),
      OpTypeRow::of_table("GemmaRmsNorm", gemma_rms_norm),
      OpTypeRow("GroupNorm", group_norm)
          .input("x", "self")
          .input("gamma", "gamma")
          .input("beta", "beta")
          .output("y", "out")
          .output("mean", "meanOut")
          .output("variance", "rstdOut")
          .required_integer("num_groups", "group")
          .text("data_format", nullptr, "NCHW")
          .real("eps", "eps", 1e-4f)
          .flag("is_training", nullptr, true)
          .complete(complete_group_norm)
          .extend(give_variance_of_groups),
      OpTypeRow("GroupNormGrad", group_norm_backward)
          .input("dy", "gradOut")
          .input("mean", "mean")
          .input("rstd", "rstd")
          .input("x", "input")
          .input("gamma", "gamma")
          .output("dx", "gradInput")
          .output("dgamma", "gradGammaOut")
          .output("dbeta", "gradBetaOut")
          .required_integer("num_groups", "group")
          .text("data_format", nullptr, "NCHW")
          .flag("dx_is_require", nullptr, true)
          .flag("dgamma_is_require", nullptr, true)
          .flag("dbeta_is_require", nullptr, true)
          .complete(complete_group_norm_grad),
      OpTypeRow("GroupNormSilu", *group_norm_silu.variants()[0])
          .input("x", "self")
          .optional_input("gamma", "gamma")
          .optional_input("beta", "beta")
          .output("y", "out")
          .output("mean", "meanOut")
          .output("rstd", "rstdOut")
          .required_integer("num_groups", "group")
          .real("eps", "eps", 1e-5f)
          .flag("activate_silu", "activateSilu", true),
      OpTypeRow::of_table("GroupNormSwish", group_norm_swish),
      OpTypeRow::of_table("GroupNormSwishGrad", group_norm_swish_grad),
      OpTypeRow("RotaryPositionEmbedding", rotary_position_embedding)
          .input("x", "x")
          .input("cos", "cos")
          .input("sin", "sin")
          .output("y", "out")
          .integer("mode", "mode", 0),
      OpTypeRow("RotaryPositionEmbeddingGrad", rotary_position_embedding_grad)
          .input("dy", "dy")
          .input("cos", "cos")
          .input("sin", "sin")
          .optional_input("x", "xOptional")
          .output("dx", "dxOut")
          .output("dcos", "dcosOut")
          .output("dsin", "dsinOut")
          .integer("mode", "mode", 0),
      OpTypeRow("SwiGlu", swi_glu).input("x", "x").output("y", "out").integer("dim", "dim", -1),
      OpTypeRow("SwiGluGrad", swi_glu_grad)
          .input("y_grad", "yGrad")
          .input("x", "x")
          .output("x_grad", "out")
          .integer("dim", "dim", -1),
      OpTypeRow("CrossEntropyLoss", cross_entropy_loss)
          .input("input", "input")
          .input("target", "target")
          .optional_input("weight", "weightOptional")
          .output("loss", "lossOut")
          .output("log_prob", "logProbOut")
          .output("zloss", "zlossOut")
          .output("lse_for_zloss", "lseForZlossOut")
          .text("reduction", "reductionOptional", "mean")
          .integer("ignore_index", "ignoreIndex", -100)
          .real("label_smoothing", "labelSmoothing", 0)
          .real("lse_square_scale_for_zloss", "lseSquareScaleForZloss", 0)
          .flag("return_zloss", "returnZloss", false),
      OpTypeRow("CrossEntropyLossGrad", cross_entropy_loss_grad)
          .input("grad_loss", "gradLoss")
          .input("log_prob", "logProb")
          .input("target", "target")
          .optional_input("weight", "weightOptional")
          .optional_input("grad_zloss", "gradZlossOptional")
          .optional_input("lse_for_zloss", "lseForZlossOptional")
          .output("x_grad", "out")
          .text("reduction", "reductionOptional", "mean")
          .integer("ignore_index", "ignoreIndex", -100)
          .real("label_smoothing", "labelSmoothing", 0)
          .real("lse_square_scale_for_zloss", "lseSquareScaleForZloss", 0),
      OpTypeRow("Gelu", *gelu_v2.variants()[0]).input("x", "self").output("y", "out"),
      OpTypeRow("GeluV2", gelu_v2)
          .input("x", "x")
          .output("y", "y")
          .text("approximate", nullptr, "none")
          .complete(number_of_form),
      OpTypeRow("GeluGradV2", gelu_backward_v2)
          .input("dy", "gradOutput")
          .input("x", "self")
          .output("z", "gradInput")
          .text("approximate", "approximate", "none"),
      OpTypeRow("NsaCompress", nsa_compress)
          .input("input", "input")
          .input("weight", "weight")
          .numbers("actSeqLenOptional", "actSeqLenOptional", int64, true)
          .output("output", "output")
          .text("layoutOptional", "layoutOptional", "TND")
          .required_integer("compressBlockSize", "compressBlockSize")
          .required_integer("compressStride", "compressStride")
          .required_integer("actSeqLenType", "actSeqLenType"),
      OpTypeRow("NsaCompressGrad", nsa_compress_grad)
          .input("outputGrad", "outputGrad")
          .input("input", "input")
          .input("weight", "weight")
          .numbers("actSeqLenOptional", "actSeqLenOptional", int64, true)
          .output("inputGrad", "inputGrad")
          .output("weightGrad", "weightGrad")
          .required_integer("compressBlockSize", "compressBlockSize")
          .required_integer("compressStride", "compressStride")
          .required_integer("actSeqLenType", "actSeqLenType")
          .text("layoutOptional", "layoutOptional", "TND"),
  };
  return types;
}

}  // namespace

const OpType* find_op_type(std::string_view name) {
  for (const OpType& type : op_types()) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

std::string op_type_names() {
  std::string names;
  for (const OpType& type : op_types()) names += (names.empty() ? "" : ", ") + std::string(type.name);
  return names;
}

}  // namespace descend::capi
