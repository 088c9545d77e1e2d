// aclnnLogSoftmaxBackward: contract and plan.
#include "operators/registry.h"
#include "operators/softmax_along.h"

namespace descend {

extern const Operator log_softmax_backward{
    .name = "log_softmax_backward",
    .c_name = "aclnnLogSoftmaxBackward",
    .summary = "Gradient of log softmax along a dimension.",
    .formula = "out = gradOutput - exp(output) * sum(gradOutput)          sum along dim",
    .source = "aclnnLogSoftmaxBackward",
    .notes =
        "Strided and empty tensors are fine. out may have another dtype than the inputs, also DOUBLE. host also takes "
        "inputs in DOUBLE and in any mix of floating dtypes.",
    .products = kSoftmaxAlongProducts,
    .parameters = {{"gradOutput", "grad_output", Kind::kTensor, Role::kInput, false, nullptr, false,
                    "[A1, ..., An], rank 0 to 8", "Gradient of the loss with respect to the forward's result."},
                   input_of("output", "as gradOutput", "The forward's result, log softmax."),
                   dim_parameter(),
                   output_of("out", "out", "as gradOutput", "Gradient with respect to the forward's input.")},
    .dtypes = backward_dtypes(),
    .errors = errors_of("gradOutput, output or out is null",
                        "dtypes outside the table; gradOutput and output of different ones; a private format; a view "
                        "outside its storage; an output that overlaps another tensor other than exactly; shapes that "
                        "differ; dim"),
    .infer = infer_along<kernels::SoftmaxKind::kLogSoftmaxBackward>,
    .validate_and_plan = plan_along<kernels::SoftmaxKind::kLogSoftmaxBackward>,
};

}  // namespace descend
