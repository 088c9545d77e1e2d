// aclnnNsaCompress: contract and plan. Its parameters are not in the order of its gradient's.
#include "kernels/nsa_compress.h"

#include "operators/nsa_windows.h"
#include "operators/staging.h"

namespace descend {
namespace {

enum { kInput, kWeight, kActSeqLen, kLayout, kBlockSize, kStride, kActSeqLenType, kOutput };

constexpr NsaParameters kParameters{kInput,         kWeight, kActSeqLen, kBlockSize, kStride,
                                    kActSeqLenType, kLayout, kOutput,    true};

void infer(Call& call) {
  if (call.given(kOutput)) return;
  const Tensor& input = call[kInput].tensor;
  Dims shape = input.shape;
  if (!shape.empty()) shape[0] = nsa_blocks(call, kParameters);
  call[kOutput].tensor = contiguous_tensor(input.dtype, shape);
}

Status validate_first(const Call& call) {
  for (int i : {kInput, kOutput}) DESCEND_RETURN_IF_ERROR(check_nsa_rank(call, i, 3));
  return check_nsa_rank(call, kWeight, 2);
}

Status validate(const Call& call, NsaShape* shape) {
  DESCEND_RETURN_IF_ERROR(check_nsa_layout(call, kParameters));
  DESCEND_RETURN_IF_ERROR(check_nsa_shape(call, kParameters, shape));
  return check_nsa_empty(call);
}

template <class T>
void plan_kernel(const Call& call, const NsaShape& shape, Plan& plan) {
  const int64_t blocks = shape.blocks, heads = shape.heads, depth = shape.depth, columns = heads * depth;
  const StagedRows input = stage_rows(call, plan, kInput, 1, columns, kElementOf<T>);
  const Place weight = stage_vector(call, plan, kWeight, kElementOf<kernels::Wide<T>>);
  const StagedOutput output = StagedOutput::rows(call, plan, kOutput, 1, columns, kElementOf<T>);
  const kernels::Windows windows = shape.windows(plan.keep(shape.sequences));
  plan.step("nsa_compress", 1.0 * (shape.tokens + blocks) * columns * sizeof(T),
            [=, out = output.staged()](const Addresses& addresses) {
              kernels::nsa_compress<T>({.blocks = blocks,
                                        .heads = heads,
                                        .depth = depth,
                                        .windows = windows,
                                        .input = input.at<const T>(addresses),
                                        .weight = addresses.at<const kernels::Wide<T>>(weight),
                                        .output = out.at<T>(addresses)});
            });
  output.finish(call, plan);
}

void make_plan(const Call& call, const NsaShape& shape, Plan& plan) {
  if (shape.blocks == 0 || shape.heads == 0 || shape.depth == 0) return;
  with_element_type(element_of(call[kInput].tensor.dtype), [&]<class T>(T) { plan_kernel<T>(call, shape, plan); });
}

}  // namespace

extern const Operator nsa_compress{
    .name = "nsa_compress",
    .c_name = "aclnnNsaCompress",
    .summary =
        "The compression of native sparse attention: windows of tokens, each reduced to one by a learned weight.",
    .formula = "output[c, n, :] = sum over w < W of weight[w, n] * input[start(c) + w, n, :]",
    .source = "aclnnNsaCompress",
    .notes =
        "Windows of W = compressBlockSize tokens, one every S = compressStride, in each sequence of len tokens: 0 if "
        "len < W, else (len - W) / S + 1. c numbers the windows of all sequences, start(c) is the first token of "
        "window c. W and S are multiples of 16, W >= S, and D is a multiple of 16. host also takes FLOAT and DOUBLE, "
        "any W and S from 1, any D, actSeqLenType 1, lengths that end before T, empty tensors, and no windows at all.",
    .products = kNsaProducts,
    .parameters =
        {
            {"input", "input", Kind::kTensor, Role::kInput, false, nullptr, false, "[T, N, D]",
             "Tokens of all sequences, one sequence after the other."},
            {"weight", "weight", Kind::kTensor, Role::kInput, false, nullptr, false, "[W, N]",
             "Weight of each position and head."},
            {"actSeqLenOptional", "act_seq_len", Kind::kIntArray, Role::kAttribute, false, "None", false, "",
             "Where the sequences end, not decreasing, the last at T; empty, and on host null: one sequence.", true},
            nsa_layout(),
            {"compressBlockSize", "compress_block_size", Kind::kInt, Role::kAttribute, false, nullptr, true, "",
             "W, tokens in a window."},
            {"compressStride", "compress_stride", Kind::kInt, Role::kAttribute, false, nullptr, true, "",
             "S, tokens from one window to the next."},
            {"actSeqLenType", "act_seq_len_type", Kind::kInt, Role::kAttribute, false, "0", true, "",
             "0: the numbers are cumulative; 1, on host only: each sequence's length."},
            {"output", "output", Kind::kTensor, Role::kOutput, false, nullptr, false, "[windows, N, D]",
             "One token for each window."},
        },
    .dtypes = nsa_dtypes(3),
    .errors =
        {
            {Code::kParamNullptr, "input, weight or output is null; on Atlas products actSeqLenOptional is null"},
            {Code::kParamInvalid,
             "dtypes outside the table or different from each other; a private format; a view outside its storage; "
             "an output that overlaps another tensor other than exactly; layoutOptional neither null nor 'TND'; "
             "weight that is not [W, N]"},
            {Code::kTilingError,
             "ranks, which are looked at first; W, S, D, actSeqLenType; lengths that are negative, decrease or do "
             "not end at T; output whose first dimension is not the number of windows; on Atlas products an empty "
             "tensor"},
            {Code::kFindKernelError, "the product has no such operator"},
        },
    .infer = infer,
    .validate_and_plan = validate_then_plan<NsaShape, validate, make_plan>,
    .validate_first = validate_first,
};

}  // namespace descend
