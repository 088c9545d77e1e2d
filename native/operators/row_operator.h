// What operators have in common whose kernel is a program on rows (kernels/rows): their shapes, and the plan. The
// operator says which of its parameters the program's inputs, numbers and results are.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/convert.h"
#include "kernels/rows/engine.h"
#include "operators/staging.h"
#include "runtime/fp_environment.h"

namespace descend {

inline int64_t product(const Dims& dims) {
  int64_t value = 1;
  for (const int64_t dim : dims) value *= dim;
  return value;
}

// Whether there is a tensor i that the call reads or writes.
inline bool is_touched(const Call& call, int i) { return call.given(i) && is_used(call, i); }

// Numbers of parameters, each in the program's order.
struct RowOperands {
  int x;                             // the tensor whose shape the inputs and results have
  std::vector<int> inputs = {};      // rows; one that is null has -0 for every element, which no sum notices
  std::vector<int> parameters = {};  // a number a column: a weight, 1 where null, and a bias, 0 where null
  std::vector<int> numbers = {};     // a number a row, or attributes, which are the same in every row
  std::vector<int> results = {};     // rows; the first of two may be null
  std::vector<int> sums = {};        // over the columns; forwards have none
  std::vector<int> statistics = {};  // results that are a number a row; may be null
  std::vector<int> scalars = {};     // attributes that are numbers of the call
  int added = 0;                     // to each parameter
  bool may_be_one_row = false;       // on every product: parameters may have all dimensions of x
  int repeated = -1;                 // an input that may be as the parameters: every row is then the same
  Code code = Code::kParamInvalid;   // of what check_row_operands refuses
};

// Checks that inputs and results have the shape of x.
Status check_rows_alike(const Call& call, const RowOperands& at);

// Checks the shapes: those of rows are equal; parameters and sums have the last dimensions of x; tensors of
// numbers have an element a row. Where the product is not host, at least one dimension counts rows (but where x may be
// one row), and a number's tensor has x's rank, with 1 for the dimensions of the parameters.
Status check_row_operands(const Call& call, const RowOperands& at, RowShape* shape);

// Checks that epsilon is a number of at least 0.
Status check_epsilon(const Call& call, int epsilon, Code code);

// Results that are not given are as x; statistics are FLOAT, or DOUBLE where x is, with x's rank and 1 for the
// dimensions of the parameters; sums are of that type, and as the parameters.
void infer_row_operands(Call& call, const RowOperands& at);

// The element type of the kernel of such a call.
kernels::Element row_element(const Call& call, const RowOperands& at);

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
      const Place none = plan.scratch(columns, sizeof(T));
      plan.step("fill", 1.0 * columns * sizeof(T), [=](const Addresses& to) {
        const double zero = -0.0;
        for (int64_t c = 0; c < columns; ++c) {
          kernels::convert_span(kernels::Element::kFloat64, &zero, kElementOf<T>, to.at<T>(none) + c, 1);
        }
      });
      made.in[i] = {none, 0};
    } else if (input == at.repeated && call[input].tensor.shape != call[at.x].tensor.shape) {
      made.in[i] = {stage_vector(call, plan, input, kElementOf<T>), 0};
    } else {
      made.in[i] = stage_rows(call, plan, input, leading, columns, kElementOf<T>);
    }
  }
  for (size_t i = 0; i < at.parameters.size(); ++i) {
    if (at.added == 0) {
      made.parameters[i] = stage_parameter<T>(call, plan, at.parameters[i], columns, i == 0 ? 1 : 0);
      continue;
    }
    const Place from = stage_vector(call, plan, at.parameters[i], kElementOf<W>), to = plan.scratch(columns, sizeof(W));
    plan.step("add", 2.0 * columns * sizeof(W), [=, added = static_cast<W>(at.added)](const Addresses& addresses) {
      const FixedFpEnvironment environment;
      const W* const given = addresses.at<const W>(from);
      std::transform(given, given + columns, addresses.at<W>(to), [added](W number) { return number + added; });
    });
    made.parameters[i] = {to, false};
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

}  // namespace descend
