// aclnnSoftmax: contract and plan.
#include "operators/registry.h"
#include "operators/softmax_along.h"

namespace descend {

extern const Operator softmax{
    .name = "softmax",
    .c_name = "aclnnSoftmax",
    .summary = "Softmax along a dimension.",
    .formula = "out = exp(self - max(self)) / sum(exp(self - max(self)))          maximum and sum along dim",
    .source = "aclnnSoftmax",
    .notes = "Strided and empty tensors are fine. out may have another dtype than self.",
    .products = kSoftmaxAlongProducts | ProductSet(Product::kAtlas200I500A2),
    .parameters = {{"self", "x", Kind::kTensor, Role::kInput, false, nullptr, false, "[A1, ..., An], rank 0 to 8",
                    "What is normalized."},
                   dim_parameter(),
                   output_of("out", "out", "as self", "The result.")},
    .dtypes = forward_dtypes(kSoftmaxWithoutBfloat16 | ProductSet(Product::kAtlas200I500A2)),
    .errors = {{Code::kParamNullptr, "self or out is null"},
               {Code::kParamInvalid,
                "dtypes outside the table; a private format; a view outside its storage; an output that overlaps self "
                "other than exactly; shapes that differ; dim"}},
    .infer = infer_along<kernels::SoftmaxKind::kSoftmax>,
    .validate_and_plan = plan_along<kernels::SoftmaxKind::kSoftmax>,
};

}  // namespace descend
