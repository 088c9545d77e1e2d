// aclnnNsaCompressGrad: contract and plan.
#include "kernels/nsa_compress_grad.h"

#include "operators/nsa_windows.h"
#include "operators/staging.h"

namespace descend {
namespace {

enum {
  kOutputGrad,
  kInput,
  kWeight,
  kActSeqLen,
  kBlockSize,
  kStride,
  kActSeqLenType,
  kLayout,
  kInputGrad,
  kWeightGrad,
};

constexpr NsaParameters kParameters{kInput,         kWeight, kActSeqLen,  kBlockSize, kStride,
                                    kActSeqLenType, kLayout, kOutputGrad, false};

void infer(Call& call) {
  for (const auto& [gradient, of] : {std::pair{kInputGrad, kInput}, std::pair{kWeightGrad, kWeight}}) {
    const Tensor& tensor = call[of].tensor;
    if (!call.given(gradient)) call[gradient].tensor = contiguous_tensor(tensor.dtype, tensor.shape);
  }
}

Status validate_first(const Call& call) {
  for (int i : {kOutputGrad, kInput, kInputGrad}) DESCEND_RETURN_IF_ERROR(check_nsa_rank(call, i, 3));
  for (int i : {kWeight, kWeightGrad}) DESCEND_RETURN_IF_ERROR(check_nsa_rank(call, i, 2));
  return {};
}

Status validate(const Call& call, NsaShape* shape) {
  DESCEND_RETURN_IF_ERROR(check_nsa_layout(call, kParameters));
  DESCEND_RETURN_IF_ERROR(check_nsa_shape(call, kParameters, shape));
  DESCEND_RETURN_IF_ERROR(check_same_shape(call, kInputGrad, kInput, Code::kTilingError));
  DESCEND_RETURN_IF_ERROR(check_same_shape(call, kWeightGrad, kWeight, Code::kTilingError));
  return check_nsa_empty(call);
}

template <class T>
void plan_kernel(const Call& call, const NsaShape& shape, Plan& plan) {
  using W = kernels::Wide<T>;
  const int64_t tokens = shape.tokens, heads = shape.heads, depth = shape.depth, columns = heads * depth;
  const StagedRows output_grad = stage_rows(call, plan, kOutputGrad, 1, columns, kElementOf<T>);
  const StagedRows input = stage_rows(call, plan, kInput, 1, columns, kElementOf<T>);
  const Place weight = stage_vector(call, plan, kWeight, kElementOf<W>);
  const StagedOutput input_grad = StagedOutput::rows(call, plan, kInputGrad, 1, columns, kElementOf<T>);
  const kernels::Windows windows = shape.windows(plan.keep(shape.sequences));

  const int64_t slots = kernels::nsa_compress_grad_slots<T>(tokens, heads, depth, shape.width);
  const StagedSums weight_grad(call, plan, kWeightGrad, slots, shape.width * heads, kElementOf<T>);
  plan.step("nsa_compress_grad", (2.0 * tokens + shape.blocks) * columns * sizeof(T),
            [=, out = input_grad.staged()](const Addresses& addresses) {
              kernels::nsa_compress_grad<T>({.tokens = tokens,
                                             .heads = heads,
                                             .depth = depth,
                                             .windows = windows,
                                             .output_grad = output_grad.at<const T>(addresses),
                                             .input = input.at<const T>(addresses),
                                             .weight = addresses.at<const W>(weight),
                                             .input_grad = out.at<T>(addresses),
                                             .weight_slots = weight_grad.at<T>(addresses).slots});
            });
  input_grad.finish(call, plan);
  weight_grad.finish(call, plan);
}

void make_plan(const Call& call, const NsaShape& shape, Plan& plan) {
  if (shape.heads == 0) return;
  with_element_type(element_of(call[kInput].tensor.dtype), [&]<class T>(T) { plan_kernel<T>(call, shape, plan); });
}

}  // namespace

extern const Operator nsa_compress_grad{
    .name = "nsa_compress_grad",
    .c_name = "aclnnNsaCompressGrad",
    .summary = "Gradients of the compression of native sparse attention with respect to its input and its weight.",
    .formula =
        "weightGrad[w, n]   = sum over c, d of outputGrad[c, n, d] * input[start(c) + w, n, d]\n"
        "inputGrad[t, n, :] = sum over (c, w) with start(c) + w = t of weight[w, n] * outputGrad[c, n, :]",
    .source = "aclnnNsaCompressGrad",
    .notes =
        "Windows of W = compressBlockSize tokens, one every S = compressStride, in each sequence of len tokens: 0 if "
        "len < W, else (len - W) / S + 1. c numbers the windows of all sequences, start(c) is the first token of "
        "window c. Tokens that no window covers get 0. W and S are multiples of 16, W > S, and D is a multiple of "
        "16. host also takes FLOAT and DOUBLE, any W and S from 1, any D, actSeqLenType 1, lengths that end before "
        "T, empty tensors, and no windows at all.",
    .products = kNsaProducts,
    .parameters =
        {
            {"outputGrad", "output_grad", Kind::kTensor, Role::kInput, false, nullptr, false, "[windows, N, D]",
             "Gradient of the loss with respect to the forward's output."},
            {"input", "input", Kind::kTensor, Role::kInput, false, nullptr, false, "[T, N, D]",
             "Input of the forward."},
            {"weight", "weight", Kind::kTensor, Role::kInput, false, nullptr, false, "[W, N]",
             "Weight of the forward."},
            {"actSeqLenOptional", "act_seq_len", Kind::kIntArray, Role::kAttribute, true, "None", false, "",
             "Where the sequences end, not decreasing, the last at T; null or empty: one sequence."},
            {"compressBlockSize", "compress_block_size", Kind::kInt, Role::kAttribute, false, nullptr, true, "",
             "W, tokens in a window."},
            {"compressStride", "compress_stride", Kind::kInt, Role::kAttribute, false, nullptr, true, "",
             "S, tokens from one window to the next."},
            {"actSeqLenType", "act_seq_len_type", Kind::kInt, Role::kAttribute, false, "0", true, "",
             "0: the numbers are cumulative; 1, on host only: each sequence's length."},
            nsa_layout(),
            {"inputGrad", "input_grad", Kind::kTensor, Role::kOutput, false, nullptr, false, "as input",
             "Gradient with respect to input."},
            {"weightGrad", "weight_grad", Kind::kTensor, Role::kOutput, false, nullptr, false, "as weight",
             "Gradient with respect to weight."},
        },
    .dtypes = nsa_dtypes(5),
    .errors =
        {
            {Code::kParamNullptr, "outputGrad, input, weight, inputGrad or weightGrad is null"},
            {Code::kParamInvalid,
             "dtypes outside the table or different from each other; a private format; a view outside its storage; "
             "an output that overlaps another tensor other than exactly; layoutOptional neither null nor 'TND'; "
             "weight that is not [W, N]"},
            {Code::kTilingError,
             "ranks, which are looked at first; W, S, D, actSeqLenType; lengths that are negative, decrease or do "
             "not end at T; outputGrad whose first dimension is not the number of windows; on Atlas products an "
             "empty tensor"},
            {Code::kFindKernelError, "the product has no such operator"},
        },
    .infer = infer,
    .validate_and_plan = validate_then_plan<NsaShape, validate, make_plan>,
    .validate_first = validate_first,
    .const_outputs = true,
};

}  // namespace descend
