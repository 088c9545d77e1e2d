#include "operators/softmax_along.h"

#include "kernels/log_softmax.h"
#include "kernels/rows/engine.h"
#include "kernels/scaled_masked_softmax.h"
#include "kernels/scaled_masked_softmax_backward.h"
#include "operators/staging.h"

namespace descend::kernels {
template <class T>
void log_softmax_backward(const RowProblem<Wide<T>>& problem, void* scratch);
}  // namespace descend::kernels

namespace descend {
namespace {

using kernels::SoftmaxKind;

// The dimension's place, its size, and what lies before and behind it. A number is a vector of one.
struct AlongShape {
  uint64_t place = 0;
  int64_t before = 1, size = 1, behind = 1;
};

Status find_shape(const Call& call, SoftmaxAlong op, AlongShape* shape) {
  const Dims& x = call[0].tensor.shape;
  for (int i : {op.inputs() - 1, op.out()}) {
    if (i != 0) DESCEND_RETURN_IF_ERROR(check_same_shape(call, i, 0));
  }
  const int64_t dim = call[op.dim()].integer, rank = std::max<int64_t>(1, static_cast<int64_t>(x.size()));
  if (dim < -rank || dim >= rank) {
    return call.fail(Code::kParamInvalid, call.name(op.dim()), " is ", dim, ", but must be from -", rank, " to ",
                     rank - 1, " for ", call.name(0), " of shape ", to_string(x), ".");
  }
  shape->place = static_cast<uint64_t>(dim < 0 ? dim + rank : dim);
  for (uint64_t i = 0; i < x.size(); ++i) {
    (i < shape->place ? shape->before : i == shape->place ? shape->size : shape->behind) *= x[i];
  }
  return {};
}

// The dimension lies last: rows.
template <class T>
void compute_rows(SoftmaxKind kind, int64_t rows, int64_t columns, const kernels::Rows<const T>* in,
                  const kernels::Rows<T>& out, void* scratch) {
  switch (kind) {
    case SoftmaxKind::kSoftmax:
      return kernels::scaled_masked_softmax<T>({rows, columns, in[0], {}, 1.0, out});
    case SoftmaxKind::kLogSoftmax:
      return kernels::log_softmax<T>({rows, columns, in[0], out});
    case SoftmaxKind::kSoftmaxBackward:
      return kernels::scaled_masked_softmax_backward<T>({rows, columns, in[0], in[1], {}, 1.0, out}, scratch);
    case SoftmaxKind::kLogSoftmaxBackward: {
      kernels::RowProblem<kernels::Wide<T>> problem;
      problem.rows = rows;
      problem.columns = columns;
      problem.element = kElementOf<T>;
      for (int i = 0; i < 2; ++i) problem.in[i] = kernels::stream_of(in[i]);
      problem.out = kernels::stream_of(out);
      return kernels::log_softmax_backward<T>(problem, scratch);
    }
  }
}

template <class T>
void plan_kernel(const Call& call, SoftmaxAlong op, const AlongShape& shape, Plan& plan) {
  const auto [place, before, size, behind] = shape;
  const bool is_last = behind == 1, joins = kernels::SoftmaxColumns<T>::joins_rows(behind);
  // What is staged as a row: the dimension, a matrix, or a row of one.
  const uint64_t leading = joins ? place : place + 1;
  const int64_t columns = joins ? size * behind : behind;
  StagedRows in[2]{};
  for (int i = 0; i < op.inputs(); ++i) in[i] = stage_rows(call, plan, i, leading, columns, kElementOf<T>);
  const StagedOutput out = StagedOutput::rows(call, plan, op.out(), leading, columns, kElementOf<T>);
  const Place scratch =
      plan.scratch(is_last && is_backward(op.kind) ? kernels::forward_scratch(before, size, kElementOf<T>, 0, 2) : 0);
  const double bytes = (op.inputs() + 1.0) * before * size * behind * sizeof(T);
  plan.step(call.op->name, bytes, [=, x = in[0], y = in[1], staged = out.staged()](const Addresses& addresses) {
    const kernels::Rows<const T> from[2] = {x.template at<const T>(addresses), op.inputs() > 1
                                                                                   ? y.template at<const T>(addresses)
                                                                                   : kernels::Rows<const T>{}};
    const kernels::Rows<T> to = staged.template at<T>(addresses);
    if (is_last) return compute_rows<T>(op.kind, before, size, from, to, addresses.at<void>(scratch));
    const auto matrices = [&](const auto& rows) {
      using Made = kernels::Matrices<std::remove_pointer_t<decltype(rows.data)>>;
      return joins ? Made{rows.data, rows.stride, behind} : Made{rows.data, rows.stride * size, rows.stride};
    };
    kernels::softmax_columns<T>({before, size, behind, {matrices(from[0]), matrices(from[1])}, matrices(to)}, op.kind);
  });
  out.finish(call, plan);
}

}  // namespace

Parameter dim_parameter() {
  return {"dim", "dim", Kind::kInt, Role::kAttribute, false, "-1", false, "", "The dimension, from -n to n - 1."};
}

std::vector<DtypeRow> forward_dtypes(ProductSet without_bfloat16) {
  const DtypeSet narrow{Dtype::kFloat, Dtype::kFloat16, Dtype::kDouble};
  return {{kSoftmaxWithBfloat16 | ProductSet(Product::kHost), {kAllFloats, kAllFloats}},
          {without_bfloat16, {narrow, narrow}}};
}

std::vector<DtypeRow> backward_dtypes() {
  const DtypeSet narrow{Dtype::kFloat, Dtype::kFloat16, Dtype::kDouble};
  std::vector<DtypeRow> rows;
  for (Dtype dtype : {Dtype::kFloat, Dtype::kFloat16, Dtype::kBfloat16}) {
    rows.push_back({kSoftmaxWithBfloat16, {DtypeSet{dtype}, DtypeSet{dtype}, kAllFloats}});
    if (dtype == Dtype::kBfloat16) continue;
    rows.push_back({kSoftmaxWithoutBfloat16, {DtypeSet{dtype}, DtypeSet{dtype}, narrow}});
  }
  rows.push_back({ProductSet(Product::kHost), {kAllFloats, kAllFloats, kAllFloats}});
  return rows;
}

void infer_softmax(Call& call, SoftmaxAlong op) {
  const Tensor& x = call[0].tensor;
  if (!call.given(op.out())) call[op.out()].tensor = contiguous_tensor(x.dtype, x.shape);
}

Status plan_softmax(const Call& call, SoftmaxAlong op, Plan* plan) {
  AlongShape shape;
  DESCEND_RETURN_IF_ERROR(find_shape(call, op, &shape));
  if (plan == nullptr || call[0].tensor.empty()) return {};
  with_element_type(kernel_element(call, 0, {op.inputs() - 1, op.out()}),
                    [&]<class T>(T) { plan_kernel<T>(call, op, shape, *plan); });
  return {};
}

}  // namespace descend
