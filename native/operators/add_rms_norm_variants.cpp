#include "operators/add_rms_norm_variants.h"

#include "operators/registry.h"
#include "operators/row_operator.h"

namespace descend::kernels {
template <class T>
void add_rms_norm(const RowProblem<Wide<T>>& problem, void* scratch);
}

namespace descend {
namespace {

enum { kX1, kX2, kGamma, kEpsilon, kRstd };

const RowOperands& parts() {
  static const RowOperands at{.x = kX1,
                              .inputs = {kX1, kX2},
                              .parameters = {kGamma},
                              .results = {kX2, kX1},  // the sum and its norm
                              .statistics = {kRstd},
                              .scalars = {kEpsilon},
                              .may_be_one_row = true};
  return at;
}

// The page takes neither empty tensors nor strided ones.
Status check_page(const Call& call) {
  for (const int i : {kX1, kX2, kGamma, kRstd}) {
    const Tensor& tensor = call[i].tensor;
    if (tensor.empty()) {
      return call.fail(Code::kParamInvalid, call.name(i), " has shape ", to_string(tensor.shape),
                       ", but must not be empty on ", info(call.product).name, ".");
    }
    DESCEND_RETURN_IF_ERROR(check_contiguous(call, i));
  }
  return {};
}

Status validate_and_plan(const Call& call, Plan* plan) {
  RowShape shape;
  DESCEND_RETURN_IF_ERROR(check_row_operands(call, parts(), &shape));
  DESCEND_RETURN_IF_ERROR(check_epsilon(call, kEpsilon, Code::kParamInvalid));
  if (!call.on_host()) DESCEND_RETURN_IF_ERROR(check_page(call));
  if (plan == nullptr || shape.rows == 0) return {};
  with_element_type(row_element(call, parts()),
                    [&]<class T>(T) { plan_row_operator<T>(call, parts(), shape, kernels::add_rms_norm<T>, *plan); });
  return {};
}

const Operator& inplace_add_rms_norm() {
  static const Operator variant = [] {
    Operator op = add_rms_norm;
    op.variants = nullptr;
    op.name = "inplace_add_rms_norm";
    op.c_name = "aclnnInplaceAddRmsNorm";
    op.summary = "The same in place: x1Ref becomes yOut, and x2Ref xOut.";
    op.source = op.c_name;
    // The first two are read, too.
    op.parameters = {output_of("x1Ref", "x1", "[A1, ..., An, R1, ..., Rk], rank 1 to 8", "One term; becomes the norm."),
                     output_of("x2Ref", "x2", "as x1", "The other; becomes the sum."),
                     input_of("gamma", "[R1, ..., Rk]", "Weight."),
                     number_of("epsilon", "1e-06", "Added to the mean of the squares; at least 0."),
                     output_of("rstdOut", "rstd_out", "[A1, ..., An, 1, ..., 1]", "What the gradient needs.")};
    op.parameters.back().c_type = "const aclTensor*";
    for (DtypeRow& row : op.dtypes) row.sets.erase(row.sets.begin() + 3, row.sets.begin() + 4);  // of yOut
    for (DtypeRow& row : op.dtypes) row.sets.pop_back();                                         // of xOut
    op.infer = nullptr;
    op.validate_first = nullptr;
    op.validate_and_plan = validate_and_plan;
    return op;
  }();
  return variant;
}

}  // namespace

std::span<const Operator* const> add_rms_norm_variants() {
  static const Operator* const variants[] = {&inplace_add_rms_norm()};
  return variants;
}

}  // namespace descend
