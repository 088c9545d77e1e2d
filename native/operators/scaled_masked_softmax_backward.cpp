// aclnnScaledMaskedSoftmaxBackward: contract and plan.
#include "kernels/scaled_masked_softmax_backward.h"

#include "operators/softmax_shape.h"
#include "operators/staging.h"

namespace descend {
namespace {

enum { kGradOutput, kY, kMask, kScale, kFixTriuMask, kOut };

const SoftmaxParameters kParameters{kGradOutput, {kY, kOut}, kMask, kFixTriuMask, 0};

void infer(Call& call) {
  const Tensor& grad = call[kGradOutput].tensor;
  if (!call.given(kOut)) call[kOut].tensor = contiguous_tensor(grad.dtype, grad.shape);
}

bool counts(const Call& call, int i) { return i != kMask || softmax_mask_counts(call, kFixTriuMask); }

Status validate(const Call& call, SoftmaxShape* shape) { return check_softmax_shape(call, kParameters, shape); }

template <class T>
void plan_kernel(const Call& call, const SoftmaxShape& shape, Plan& plan) {
  const auto [leading, rows, columns] = shape;
  const StagedRows dy = stage_rows(call, plan, kGradOutput, leading, columns, kElementOf<T>);
  const StagedRows y = stage_rows(call, plan, kY, leading, columns, kElementOf<T>);
  const StagedOutput dx = StagedOutput::rows(call, plan, kOut, leading, columns, kElementOf<T>);
  const StagedMask mask(call, kParameters);
  const Place scratch = plan.scratch(kernels::scaled_masked_softmax_backward_scratch<T>(rows, columns));
  plan.step("scaled_masked_softmax_backward", 3.0 * rows * columns * sizeof(T),
            [=, scale = call[kScale].real, out = dx.staged()](const Addresses& addresses) {
              kernels::scaled_masked_softmax_backward<T>({.rows = rows,
                                                          .columns = columns,
                                                          .dy = dy.at<const T>(addresses),
                                                          .y = y.at<const T>(addresses),
                                                          .mask = mask.at(addresses),
                                                          .scale = scale,
                                                          .dx = out.at<T>(addresses)},
                                                         addresses.at<void>(scratch));
            });
  dx.finish(call, plan);
}

void make_plan(const Call& call, const SoftmaxShape& shape, Plan& plan) {
  if (shape.rows == 0 || shape.columns == 0) return;
  with_element_type(softmax_element(call, kGradOutput, kScale), [&]<class T>(T) { plan_kernel<T>(call, shape, plan); });
}

}  // namespace

extern const Operator scaled_masked_softmax_backward{
    .name = "scaled_masked_softmax_backward",
    .c_name = "aclnnScaledMaskedSoftmaxBackward",
    .summary = "Gradient of the scaled, masked softmax with respect to its input.",
    .formula =
        "out = 0                                                       where mask is true\n"
        "out = scale * (gradOutput * y - y * sum(gradOutput * y))      elsewhere",
    .source = "aclnnScaledMaskedSoftmaxBackward",
    .notes =
        "The sum runs over the whole last axis, masked positions included: a NaN there makes the rest of its row "
        "NaN. Where mask is true the result is 0, whatever gradOutput and y hold. Strided and empty tensors are "
        "fine. ascend-950, of which the page aclnnScaledMaskedSoftmaxBackward of the public repository cann/ops-nn "
        "says "
        "nothing and the operator's definition there does, is as atlas-a3. host also takes DOUBLE, any rank from 1, "
        "any length of the last axis, any mask that broadcasts, no "
        "mask (None: nothing is masked), and fixTriuMask true: mask is then ignored, and element (i, j) of the last "
        "two axes masked where j > i.",
    .products = kSoftmaxProducts,
    .parameters =
        {
            {"gradOutput", "grad_output", Kind::kTensor, Role::kInput, false, nullptr, false,
             "[B, N, S1, S2], S2 from 0 to 4096", "Gradient of the loss with respect to the forward's output."},
            {"y", "y", Kind::kTensor, Role::kInput, false, nullptr, false, "as gradOutput", "Output of the forward."},
            {"mask", "mask", Kind::kTensor, Role::kInput, false, nullptr, false, "[B or 1, N or 1, S1, S2]",
             "True where the forward masked; on host null masks nothing.", true},
            {"scale", "scale", Kind::kFloat, Role::kAttribute, false, "1.0", false, "", "The forward's scale."},
            {"fixTriuMask", "fix_triu_mask", Kind::kBool, Role::kAttribute, false, "False", false, "",
             "Mask what lies above the diagonal instead; on host only."},
            {"out", "out", Kind::kTensor, Role::kOutput, false, nullptr, false, "as gradOutput",
             "Gradient with respect to the forward's input."},
        },
    .dtypes = softmax_dtypes(4, 2),
    .errors =
        {
            {Code::kParamNullptr, "gradOutput, y, mask or out is null"},
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
