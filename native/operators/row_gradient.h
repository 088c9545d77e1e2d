// What gradients have in common whose kernel is a program on rows (kernels/rows): their shapes, and the plan. The
// operator says which of its parameters the program's inputs, numbers and results are.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/rows/engine.h"
#include "operators/staging.h"

namespace descend {

// Numbers of parameters, each in the program's order.
struct RowGradient {
  int x;                        // the tensor whose shape the inputs and results have
  std::vector<int> inputs;      // rows
  std::vector<int> parameters;  // a number a column; 1 where null
  std::vector<int> numbers;     // a number a row, or attributes, which are the same in every row
  std::vector<int> results;     // rows
  std::vector<int> sums;        // over the columns
};

// Checks the shapes (161002): those of rows are equal; parameters and sums have the last dimensions of x; tensors of
// numbers have an element a row. Where the product is not host, x also has a rank of 2 to 8, at least one dimension
// counts rows, and a number's tensor has x's rank, with 1 for the dimensions of the parameters.
Status check_row_gradient(const Call& call, const RowGradient& at, RowShape* shape);

// Results that are not given are as x; sums as the parameters, in FLOAT, or in DOUBLE where x is.
void infer_row_gradient(Call& call, const RowGradient& at);

// The element type of the kernel of such a call.
kernels::Element row_gradient_element(const Call& call, const RowGradient& at);

template <class T>
void plan_row_gradient(const Call& call, const RowGradient& at, const RowShape& shape,
                       void (*kernel)(const kernels::RowProblem<kernels::Wide<T>>&, void*), Plan& plan) {
  using W = kernels::Wide<T>;
  const auto [leading, rows, columns] = shape;
  struct Operands {
    StagedRows in[kernels::kMostInputs], out[kernels::kMostOutputs];
    bool wanted[kernels::kMostOutputs];
    StagedParameter<T> parameters[kernels::kMostParameters];
    Place numbers[kernels::kMostNumbers], scratch;
    StagedSums sums[kernels::kMostSums];
    size_t inputs, parameters_given, numbers_given, sums_given;
  } made{};
  made.inputs = at.inputs.size();
  made.parameters_given = at.parameters.size();
  made.numbers_given = at.numbers.size();
  made.sums_given = at.sums.size();
  for (size_t i = 0; i < at.inputs.size(); ++i) {
    made.in[i] = stage_rows(call, plan, at.inputs[i], leading, columns, kElementOf<T>);
  }
  for (size_t i = 0; i < at.parameters.size(); ++i) {
    made.parameters[i] = stage_parameter<T>(call, plan, at.parameters[i], columns, 1);
  }
  for (size_t i = 0; i < at.numbers.size(); ++i) {
    const int number = at.numbers[i];
    if (call.op->parameters[number].kind == Kind::kTensor) {
      made.numbers[i] = stage_vector(call, plan, number, kElementOf<W>);
      continue;
    }
    const Place same = made.numbers[i] = plan.scratch(rows, sizeof(W));
    plan.step("fill", 1.0 * rows * sizeof(W), [=, value = static_cast<W>(call[number].real)](const Addresses& to) {
      std::fill_n(to.at<W>(same), rows, value);
    });
  }
  std::vector<StagedOutput> results;
  for (size_t i = 0; i < at.results.size(); ++i) {
    made.wanted[i] = is_used(call, at.results[i]);
    if (!made.wanted[i]) continue;
    results.push_back(StagedOutput::rows(call, plan, at.results[i], leading, columns, kElementOf<T>));
    made.out[i] = results.back().staged();
  }
  const int inputs = static_cast<int>(at.inputs.size());
  const int64_t slots = kernels::gradient_slots(rows, columns, kElementOf<T>, inputs);
  for (size_t i = 0; i < at.sums.size(); ++i) {
    if (is_used(call, at.sums[i])) made.sums[i] = StagedSums(call, plan, at.sums[i], slots, columns, kElementOf<T>);
  }
  made.scratch = plan.scratch(kernels::gradient_scratch(rows, columns, kElementOf<T>, inputs));
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
    for (size_t i = 0; i < made.sums_given; ++i) {
      const kernels::ColumnSums<T> sums = made.sums[i].template at<T>(to);
      p.sums[i] = {sums.slots, sums.wide, sums.own};
    }
    kernel(p, to.at<void>(made.scratch));
  });
  for (const StagedOutput& result : results) result.finish(call, plan);
  for (size_t i = 0; i < at.sums.size(); ++i) made.sums[i].finish(call, plan);
}

}  // namespace descend
