// aclnnAddLayerNorm: contract and plan.
#include "operators/row_operator.h"

namespace descend::kernels {
template <class T>
void add_layer_norm(const RowProblem<Wide<T>>& problem, void* scratch);
template <class T>
void add_bias_layer_norm(const RowProblem<Wide<T>>& problem, void* scratch);
}  // namespace descend::kernels

namespace descend {
namespace {

enum { kX1, kX2, kGamma, kBeta, kBias, kEpsilon, kAdditionalOutput, kY, kMean, kRstd, kX };

const RowOperands& parts(bool with_bias) {
  static const auto made = [](std::vector<int> inputs) {
    return RowOperands{.x = kX1,
                       .inputs = std::move(inputs),
                       .parameters = {kGamma, kBeta},
                       .results = {kX, kY},
                       .statistics = {kMean, kRstd},
                       .scalars = {kEpsilon},
                       .may_be_one_row = true,
                       .repeated = kBias,
                       .code = Code::kTilingError};
  };
  static const RowOperands plain = made({kX1, kX2}), with = made({kX1, kX2, kBias});
  return with_bias ? with : plain;
}

bool has_sum(const Call& call) { return call[kAdditionalOutput].flag; }

// Without additionalOutput host ignores xOut. The documents have it all the same.
bool counts(const Call& call, int i) { return i != kX || !call.on_host() || has_sum(call); }
bool computes(const Call& call, int i) { return i != kX || has_sum(call); }

// Where the terms have two types the results have the one that both are computed in.
void infer(Call& call) {
  infer_row_operands(call, parts(false));
  const Dtype x1 = call[kX1].tensor.dtype, x2 = call[kX2].tensor.dtype;
  const bool is_double = x1 == Dtype::kDouble || x2 == Dtype::kDouble;
  const Dtype sum = x1 == x2 ? x1 : is_double ? Dtype::kDouble : Dtype::kFloat;
  for (const int i : {kX, kY}) {
    if (!call.given(i)) call[i].tensor = contiguous_tensor(sum, call[kX1].tensor.shape);
  }
}

constexpr int64_t kLeastBytes = 32;  // of the last dimension on atlas-inference

Status check_page(const Call& call) {
  for (const int i : {kX1, kGamma}) {
    const Dims& shape = call[i].tensor.shape;
    if (call[i].tensor.empty()) {
      return call.fail(Code::kTilingError, call.name(i), " has shape ", to_string(shape), ", but must not be empty on ",
                       info(call.product).name, ".");
    }
    const int64_t bytes = shape.back() * dtype_size(call[i].tensor.dtype);
    if (call.product == Product::kAtlasInference && bytes < kLeastBytes) {
      return call.fail(Code::kParamInvalid, "the last dimension of ", call.name(i), " has ", bytes,
                       " bytes, but must have ", kLeastBytes, " or more on ", info(call.product).name, ".");
    }
  }
  return {};
}

Status validate(const Call& call, RowShape* shape) {
  DESCEND_RETURN_IF_ERROR(check_row_operands(call, parts(call.given(kBias)), shape));
  if (!call.on_host()) DESCEND_RETURN_IF_ERROR(check_page(call));
  return check_epsilon(call, kEpsilon, Code::kParamInvalid);
}

void make_plan(const Call& call, const RowShape& shape, Plan& plan) {
  if (shape.rows == 0) return;
  const bool with_bias = call.given(kBias);
  const RowOperands& at = parts(with_bias);
  with_element_type(row_element(call, at), [&]<class T>(T) {
    plan_row_operator<T>(call, at, shape, with_bias ? kernels::add_bias_layer_norm<T> : kernels::add_layer_norm<T>,
                         plan);
  });
}

using enum Product;
constexpr ProductSet kWithBfloat16(kAtlasA3, kAtlasA2Training, kAtlasA2Inference, kAscend950);
constexpr ProductSet kHuawei = kWithBfloat16 | ProductSet(kAtlasInference);
constexpr DtypeSet kF32{Dtype::kFloat}, kF16{Dtype::kFloat16}, kBf16{Dtype::kBfloat16};

// sum: of bias and the results; parameter: of gamma and beta.
DtypeRow row(ProductSet products, DtypeSet x1, DtypeSet x2, DtypeSet parameter, DtypeSet sum) {
  return {products, {x1, x2, parameter, parameter, sum, sum, kF32, kF32, sum}};
}

}  // namespace

extern const Operator add_layer_norm{
    .name = "add_layer_norm",
    .c_name = "aclnnAddLayerNorm",
    .summary = "Layer norm of a sum; and the sum.",
    .formula =
        "x         = x1 + x2 + bias\n"
        "mean, var = mean and biased variance of each row of x\n"
        "rstd      = 1 / sqrt(var + epsilon)\n"
        "y         = (x - mean) * rstd * gamma + beta",
    .source = "aclnnAddLayerNorm",
    .notes =
        "gamma and beta have the last dimensions of x1; the rest counts the rows. bias has gamma's shape or x1's; "
        "null: "
        "nothing is added. y is computed from the sum before it is rounded to xOut. Without additionalOutput xOut is "
        "not written: host takes null for it, and the functional form returns None. Where they are allocated, y and x "
        "have the dtype of x1 and x2 or, if these differ, FLOAT (DOUBLE if one is). Strided tensors are fine, empty "
        "ones on host: the mean of a row without elements is 0, its rstd NaN. host also takes DOUBLE, any mix of "
        "floating dtypes, and meanOut and rstdOut of any shape with an element a row.",
    .products = kHuawei | ProductSet(kHost),
    .parameters = {input_of("x1",
                            "[A1, ..., An, R1, ..., Rk], rank 1 to 8; on atlas-inference the last of 32 bytes or more",
                            "One term of the sum."),
                   input_of("x2", "as x1", "The other."),
                   input_of("gamma", "[R1, ..., Rk]", "Weight."),
                   input_of("beta", "as gamma", "Bias of the norm."),
                   {"biasOptional", "bias", Kind::kTensor, Role::kInput, true, "None", false, "[R1, ..., Rk] or as x1",
                    "A third term of the sum; may be null."},
                   number_of("epsilon", "1e-05", "Added to the variance; at least 0."),
                   {"additionalOutput", "additional_output", Kind::kBool, Role::kAttribute, false, "False", false, "",
                    "Whether the sum is a result, too."},
                   output_of("yOut", "y_out", "as x1", "The norm."),
                   output_of("meanOut", "mean_out", "[A1, ..., An, 1, ..., 1]", "Mean of each row of the sum."),
                   output_of("rstdOut", "rstd_out", "as meanOut", "1 / sqrt(variance + epsilon) of each such row."),
                   {"xOut", "x_out", Kind::kTensor, Role::kOutput, false, nullptr, false, "as x1", "The sum, rounded.",
                    false, true}},
    .dtypes = {row(kHuawei, kF32, kF32, kF32, kF32),
               row(kHuawei, kF16, kF16, kF16, kF16),
               row(kWithBfloat16, kBf16, kBf16, kBf16, kBf16),
               row(kWithBfloat16, kF32, kF16 | kBf16, kF32, kF32),
               row(kWithBfloat16, kF16 | kBf16, kF32, kF32, kF32),
               row(kWithBfloat16, kF16, kF16, kF32, kF16),
               row(kWithBfloat16, kBf16, kBf16, kF32, kBf16),
               {ProductSet(kHost), std::vector<DtypeSet>(9, kAllFloats)}},
    .errors = {{Code::kParamNullptr,
                "a tensor but biasOptional is null; on host xOut may be, without additionalOutput"},
               {Code::kParamInvalid,
                "a dtype that no row of the table has in that place; a combination that is no row; a private format; a "
                "view outside its storage; an output that overlaps another tensor other than exactly; a negative "
                "epsilon; on atlas-inference a last dimension of less than 32 bytes"},
               {Code::kTilingError, "ranks and shapes; on Huawei's products an empty tensor"},
               {Code::kFindKernelError, "the product has no such operator"}},
    .infer = infer,
    .validate_and_plan = validate_then_plan<RowShape, validate, make_plan>,
    .counts = counts,
    .computes = computes,
    .const_outputs = true,
};

}  // namespace descend
