// What softmax and log softmax along any dimension share with their gradients: products, dtypes, shapes, and the plan.
#pragma once

#include <vector>

#include "kernels/softmax_columns.h"
#include "operators/operator.h"

namespace descend {

// One of the operators: what it computes, and how many inputs, which stand first, behind them the dimension and the
// output.
struct SoftmaxAlong {
  kernels::SoftmaxKind kind;

  int inputs() const { return is_backward(kind) ? 2 : 1; }
  int dim() const { return inputs(); }
  int out() const { return inputs() + 1; }
};

// LogSoftmax and the gradients have these products; Softmax has one more.
inline constexpr ProductSet kSoftmaxWithBfloat16(Product::kAtlasA3, Product::kAtlasA2Training,
                                                 Product::kAtlasA2Inference, Product::kAscend950);
inline constexpr ProductSet kSoftmaxWithoutBfloat16(Product::kAtlasInference, Product::kAtlasTraining);
inline constexpr ProductSet kSoftmaxAlongProducts =
    kSoftmaxWithBfloat16 | kSoftmaxWithoutBfloat16 | ProductSet(Product::kHost);

Parameter dim_parameter();
std::vector<DtypeRow> forward_dtypes(ProductSet without_bfloat16);
std::vector<DtypeRow> backward_dtypes();

void infer_softmax(Call& call, SoftmaxAlong op);
Status plan_softmax(const Call& call, SoftmaxAlong op, Plan* plan);

// The functions of an operator's table.
template <kernels::SoftmaxKind kKind>
void infer_along(Call& call) {
  infer_softmax(call, {kKind});
}
template <kernels::SoftmaxKind kKind>
Status plan_along(const Call& call, Plan* plan) {
  return plan_softmax(call, {kKind}, plan);
}

}  // namespace descend
