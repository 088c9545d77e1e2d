// aclnnScaledMaskedSoftmax: contract and plan.
#include "kernels/scaled_masked_softmax.h"

#include "operators/softmax_shape.h"
#include "operators/staging.h"

namespace descend {
namespace {

enum { kX, kMask, kScale, kFixTriuMask, kY };

const SoftmaxParameters kParameters{kX, {kY, kY}, kMask, kFixTriuMask, 1};

void infer(Call& call) {
  const Tensor& x = call[kX].tensor;
  if (!call.given(kY)) call[kY].tensor = contiguous_tensor(x.dtype, x.shape);
}

bool counts(const Call& call, int i) { return i != kMask || softmax_mask_counts(call, kFixTriuMask); }

Status validate(const Call& call, SoftmaxShape* shape) { return check_softmax_shape(call, kParameters, shape); }

template <class T>
void plan_kernel(const Call& call, const SoftmaxShape& shape, Plan& plan) {
  const auto [leading, rows, columns] = shape;
  const StagedRows x = stage_rows(call, plan, kX, leading, columns, kElementOf<T>);
  const StagedOutput y = StagedOutput::rows(call, plan, kY, leading, columns, kElementOf<T>);
  const StagedMask mask(call, kParameters);
  plan.step("scaled_masked_softmax", 2.0 * rows * columns * sizeof(T),
            [=, scale = call[kScale].real, out = y.staged()](const Addresses& addresses) {
              kernels::scaled_masked_softmax<T>({.rows = rows,
                                                 .columns = columns,
                                                 .x = x.at<const T>(addresses),
                                                 .mask = mask.at(addresses),
                                                 .scale = scale,
                                                 .y = out.at<T>(addresses)});
            });
  y.finish(call, plan);
}

void make_plan(const Call& call, const SoftmaxShape& shape, Plan& plan) {
  if (shape.rows == 0 || shape.columns == 0) return;
  with_element_type(softmax_element(call, kX, kScale), [&]<class T>(T) { plan_kernel<T>(call, shape, plan); });
}

}  // namespace

extern const Operator scaled_masked_softmax{
    .name = "scaled_masked_softmax",
    .c_name = "aclnnScaledMaskedSoftmax",
    .summary = "Softmax over the last axis of a scaled input, some positions masked.",
    .formula =
        "z = -10000       where mask is true\n"
        "z = scale * x    elsewhere\n"
        "y = exp(z - max(z)) / sum(exp(z - max(z)))",
    .source = "aclnnScaledMaskedSoftmax",
    .notes =
        "A row that is masked as a whole gives equal numbers. Strided and empty tensors are fine. ascend-950, of which "
        "the page aclnnScaledMaskedSoftmax of the public repository cann/ops-nn says nothing and the operator's "
        "definition there does, is as atlas-a3. host also takes "
        "DOUBLE, any rank from 1, any length of the last axis, any mask that broadcasts, no mask (None: nothing is "
        "masked), and fixTriuMask true: mask is then ignored, and element (i, j) of the last two axes masked where j "
        "> i.",
    .products = kSoftmaxProducts,
    .parameters =
        {
            {"x", "x", Kind::kTensor, Role::kInput, false, nullptr, false, "[B, N, S1, S2], S2 from 1 to 4096",
             "Input, such as attention scores."},
            {"mask", "mask", Kind::kTensor, Role::kInput, false, nullptr, false, "[B or 1, N or 1, S1, S2]",
             "True where x is masked; on host null masks nothing.", true},
            {"scale", "scale", Kind::kFloat, Role::kAttribute, false, "1.0", false, "", "What x is multiplied by."},
            {"fixTriuMask", "fix_triu_mask", Kind::kBool, Role::kAttribute, false, "False", false, "",
             "Mask what lies above the diagonal instead; on host only."},
            {"y", "y", Kind::kTensor, Role::kOutput, false, nullptr, false, "as x", "The softmax."},
        },
    .dtypes = softmax_dtypes(3, 1),
    .errors =
        {
            {Code::kParamNullptr, "x, mask or y is null"},
            {Code::kParamInvalid,
             "dtypes outside the table or different from each other; a private format; a view outside its storage; "
             "an output that overlaps another tensor other than exactly; shapes; fixTriuMask true, but for host"},
            {Code::kFindKernelError, "the product has no such operator"},
        },
    .infer = infer,
    .validate_and_plan = validate_then_plan<SoftmaxShape, validate, make_plan>,
    .counts = counts,
};

}  // namespace descend
