// aclnnLogSoftmax: contract and plan.
#include "operators/registry.h"
#include "operators/softmax_along.h"

namespace descend {

extern const Operator log_softmax{
    .name = "log_softmax",
    .c_name = "aclnnLogSoftmax",
    .summary = "The logarithm of softmax along a dimension.",
    .formula = "out = (self - max(self)) - log(sum(exp(self - max(self))))          maximum and sum along dim",
    .source = "aclnnLogSoftmax",
    .notes = "Strided and empty tensors are fine. out may have another dtype than self.",
    .products = kSoftmaxAlongProducts,
    .parameters = {{"self", "x", Kind::kTensor, Role::kInput, false, nullptr, false, "[A1, ..., An], rank 0 to 8",
                    "What is normalized."},
                   dim_parameter(),
                   output_of("out", "out", "as self", "The result.")},
    .dtypes = forward_dtypes(kSoftmaxWithoutBfloat16),
    .errors = errors_of("self or out is null",
                        "dtypes outside the table; a private format; a view outside its storage; an output that "
                        "overlaps self other than exactly; shapes that differ; dim"),
    .infer = infer_along<kernels::SoftmaxKind::kLogSoftmax>,
    .validate_and_plan = plan_along<kernels::SoftmaxKind::kLogSoftmax>,
};

}  // namespace descend
