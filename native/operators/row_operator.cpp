#include "operators/row_operator.h"

#include <algorithm>

#include "kernels/rows/convert.h"

namespace descend {
namespace {

Status check_numbers(const Call& call, int i, const RowOperands& at, const RowShape& shape) {
  const Dims &given = call[i].tensor.shape, &rows = call[at.x].tensor.shape;
  Dims expected = rows.slice(0, shape.leading);
  const auto refused = [&](const auto&... rule) {
    return call.fail(at.code, call.name(i), " has shape ", to_string(given), ", but must have ", rule...);
  };
  if (call.on_host()) {
    if (call[i].tensor.elements() == shape.rows) return {};
    return refused("as many elements as the first dimensions of ", call.name(at.x), ", ", to_string(expected), ".");
  }
  while (expected.size() < rows.size()) expected.push_back(1);
  if (given == expected) return {};
  return refused("shape ", to_string(expected), ", that of ", call.name(at.x),
                 " with 1 for each normalised dimension.");
}

}  // namespace

Status check_rows_alike(const Call& call, const RowOperands& at) {
  for (const std::vector<int>* rows : {&at.inputs, &at.results}) {
    for (const int i : *rows) {
      if (call.given(i) && i != at.repeated) DESCEND_RETURN_IF_ERROR(check_same_shape(call, i, at.x, at.code));
    }
  }
  return {};
}

Status check_row_operands(const Call& call, const RowOperands& at, RowShape* shape) {
  const int first = at.parameters[0];
  const Dims &x = call[at.x].tensor.shape, &normalized = call[first].tensor.shape;
  const uint64_t least = call.on_host() || at.may_be_one_row ? 1 : 2;
  if (x.size() < least) {
    return call.fail(at.code, call.name(at.x), " has shape ", to_string(x), ", but must have rank ", least, " to 8.");
  }
  DESCEND_RETURN_IF_ERROR(check_rows_alike(call, at));
  const uint64_t most = x.size() + 1 - least;
  if (normalized.empty() || normalized.size() > most || normalized != x.slice(x.size() - normalized.size(), x.size())) {
    return call.fail(at.code, call.name(first), " has shape ", to_string(normalized), ", but must equal the last 1 to ",
                     most, " dimensions of ", call.name(at.x), ", whose shape is ", to_string(x), ".");
  }
  if (at.repeated >= 0 && call.given(at.repeated)) {
    const Dims& repeated = call[at.repeated].tensor.shape;
    if (repeated != normalized && repeated != x) {
      return call.fail(at.code, call.name(at.repeated), " has shape ", to_string(repeated), ", but must have that of ",
                       call.name(first), ", ", to_string(normalized), ", or that of ", call.name(at.x), ", ",
                       to_string(x), ".");
    }
  }
  shape->leading = x.size() - normalized.size();
  shape->rows = product(x.slice(0, shape->leading));
  shape->columns = product(normalized);
  for (const std::vector<int>* columns : {&at.parameters, &at.sums}) {
    for (const int i : *columns) DESCEND_RETURN_IF_ERROR(check_same_shape(call, i, first, at.code));
  }
  for (const std::vector<int>* numbers : {&at.numbers, &at.statistics}) {
    for (const int i : *numbers) {
      if (call.tensor(i) != nullptr && call.op->parameters[i].kind == Kind::kTensor) {
        DESCEND_RETURN_IF_ERROR(check_numbers(call, i, at, *shape));
      }
    }
  }
  return {};
}

Status check_epsilon(const Call& call, int epsilon, Code code) {
  if (call[epsilon].real >= 0) return {};
  return call.fail(code, call.name(epsilon), " is ", call[epsilon].real, ", but must be 0 or greater.");
}

void infer_row_operands(Call& call, const RowOperands& at) {
  const Tensor& x = call[at.x].tensor;
  const Dims& normalized = call[at.parameters[0]].tensor.shape;
  const auto take = [&](const std::vector<int>& list, Dtype dtype, const Dims& shape) {
    for (const int i : list) {
      if (!call.given(i)) call[i].tensor = contiguous_tensor(dtype, shape);
    }
  };
  const Dtype wide = x.dtype == Dtype::kDouble ? Dtype::kDouble : Dtype::kFloat;
  Dims numbers = x.shape;
  const uint64_t k = std::min(normalized.size(), x.rank());
  std::fill(numbers.data() + (x.rank() - k), numbers.data() + x.rank(), 1);
  take(at.results, x.dtype, x.shape);
  take(at.sums, wide, normalized);
  take(at.statistics, wide, numbers);
}

kernels::Element row_element(const Call& call, const RowOperands& at) {
  const kernels::Element element = kernel_element(call, at.x, {});  // unless another tensor of rows has another type
  if (element == kernels::Element::kFloat64) return element;
  for (const std::vector<int>* rows : {&at.inputs, &at.results}) {
    for (const int i : *rows) {
      if (is_touched(call, i) && call[i].tensor.dtype != call[at.x].tensor.dtype) return kernels::Element::kFloat32;
    }
  }
  return element;
}

template <class T>
void plan_row_operator(const Call& call, const RowOperands& at, const RowShape& shape,
                       void (*kernel)(const kernels::RowProblem<kernels::Wide<T>>&, void*), Plan& plan) {
  using W = kernels::Wide<T>;
  const auto [leading, rows, columns] = shape;
  struct Operands {
    StagedRows in[kernels::kMostInputs], out[kernels::kMostOutputs];
    bool wanted[kernels::kMostOutputs];
    StagedParameter<T> parameters[kernels::kMostParameters];
    Place numbers[kernels::kMostNumbers], scratch;
    StagedSums sums[kernels::kMostSums];
    StagedOutput statistics[kernels::kMostNumbers];
    bool statistics_wanted[kernels::kMostNumbers];
    double scalars[kernels::kMostScalars];
    size_t inputs, parameters_given, numbers_given, sums_given;
  } made{};
  made.inputs = at.inputs.size();
  made.parameters_given = at.parameters.size();
  made.numbers_given = at.numbers.size();
  made.sums_given = at.sums.size();
  for (size_t i = 0; i < at.inputs.size(); ++i) {
    const int input = at.inputs[i];
    if (!call.given(input)) {
      const double minus_zero = -0.0;
      T number;
      kernels::convert_span(kernels::Element::kFloat64, &minus_zero, kElementOf<T>, &number, 1);
      made.in[i] = {stage_copies(plan, columns, number), 0};
    } else if (input == at.repeated && call[input].tensor.shape != call[at.x].tensor.shape) {
      made.in[i] = {stage_vector(call, plan, input, kElementOf<T>), 0};
    } else {
      made.in[i] = stage_rows(call, plan, input, leading, columns, kElementOf<T>);
    }
  }
  for (size_t i = 0; i < at.parameters.size(); ++i) {
    made.parameters[i] = stage_parameter<T>(call, plan, at.parameters[i], columns, i == 0 ? 1 : 0);
  }
  for (size_t i = 0; i < at.numbers.size(); ++i) {
    const int number = at.numbers[i];
    if (call.op->parameters[number].kind == Kind::kTensor) {
      made.numbers[i] = stage_vector(call, plan, number, kElementOf<W>);
      continue;
    }
    made.numbers[i] = stage_copies(plan, rows, static_cast<W>(call[number].real));
  }
  std::vector<StagedOutput> results;
  for (size_t i = 0; i < at.results.size(); ++i) {
    made.wanted[i] = is_touched(call, at.results[i]);
    if (!made.wanted[i]) continue;
    results.push_back(StagedOutput::rows(call, plan, at.results[i], leading, columns, kElementOf<T>));
    made.out[i] = results.back().staged();
  }
  // What is not wanted goes where the other result is written after it.
  if (at.results.size() == 2 && !made.wanted[0]) made.out[0] = made.out[1];
  made.wanted[0] = made.wanted[0] || made.wanted[1];
  for (size_t i = 0; i < at.statistics.size(); ++i) {
    made.statistics_wanted[i] = is_touched(call, at.statistics[i]);
    if (made.statistics_wanted[i]) {
      made.statistics[i] = StagedOutput::vector(call, plan, at.statistics[i], kElementOf<W>);
    }
  }
  for (size_t i = 0; i < at.scalars.size(); ++i) made.scalars[i] = call[at.scalars[i]].real;
  const int inputs = static_cast<int>(at.inputs.size());
  const bool is_forward = at.sums.empty();
  const int64_t slots = is_forward ? 0 : kernels::gradient_slots(rows, columns, kElementOf<T>, inputs);
  for (size_t i = 0; i < at.sums.size(); ++i) {
    if (is_used(call, at.sums[i])) made.sums[i] = StagedSums(call, plan, at.sums[i], slots, columns, kElementOf<T>);
  }
  const int parameters = static_cast<int>(at.parameters.size());
  made.scratch = plan.scratch(is_forward ? kernels::forward_scratch(rows, columns, kElementOf<T>, parameters, inputs)
                                         : kernels::gradient_scratch(rows, columns, kElementOf<T>, inputs));
  const double bytes = 1.0 * rows * columns * sizeof(T) * (at.inputs.size() + results.size());
  plan.step(call.op->name, bytes, [=](const Addresses& to) {
    kernels::RowProblem<W> p;
    p.rows = rows;
    p.columns = columns;
    p.element = kElementOf<T>;
    for (size_t i = 0; i < made.inputs; ++i) p.in[i] = kernels::stream_of(made.in[i].template at<const T>(to));
    if (made.wanted[0]) p.out = kernels::stream_of(made.out[0].template at<T>(to));
    if (made.wanted[1]) p.second = kernels::stream_of(made.out[1].template at<T>(to));
    for (size_t i = 0; i < made.numbers_given; ++i) p.numbers[i] = to.at<const W>(made.numbers[i]);
    for (size_t i = 0; i < made.parameters_given; ++i) {
      const kernels::ColumnParameter<T> parameter = made.parameters[i].at(to);
      p.parameters[i] = {parameter.wide, parameter.own};
    }
    for (size_t i = 0; i < kernels::kMostNumbers; ++i) {
      if (made.statistics_wanted[i]) p.statistics[i] = to.at<W>(made.statistics[i].place());
    }
    std::copy_n(made.scalars, kernels::kMostScalars, p.scalars);
    for (size_t i = 0; i < made.sums_given; ++i) {
      const kernels::ColumnSums<T> sums = made.sums[i].template at<T>(to);
      p.sums[i] = {sums.slots, sums.wide, sums.own};
    }
    kernel(p, to.at<void>(made.scratch));
  });
  for (const StagedOutput& result : results) result.finish(call, plan);
  for (size_t i = 0; i < at.statistics.size(); ++i) {
    if (made.statistics_wanted[i]) made.statistics[i].finish(call, plan);
  }
  for (size_t i = 0; i < at.sums.size(); ++i) made.sums[i].finish(call, plan);
}

template void plan_row_operator<float>(const Call&, const RowOperands&, const RowShape&,
                                       void (*)(const kernels::RowProblem<float>&, void*), Plan&);
template void plan_row_operator<kernels::float16>(const Call&, const RowOperands&, const RowShape&,
                                                  void (*)(const kernels::RowProblem<float>&, void*), Plan&);
template void plan_row_operator<kernels::bfloat16>(const Call&, const RowOperands&, const RowShape&,
                                                   void (*)(const kernels::RowProblem<float>&, void*), Plan&);
template void plan_row_operator<double>(const Call&, const RowOperands&, const RowShape&,
                                        void (*)(const kernels::RowProblem<double>&, void*), Plan&);

}  // namespace descend
