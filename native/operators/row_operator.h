// What operators have in common whose kernel is a program on rows (kernels/rows): their shapes, and the plan. The
// operator says which of its parameters the program's inputs, numbers and results are.
#pragma once

#include <vector>

#include "kernels/rows/engine.h"
#include "operators/staging.h"

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

// The plan of such a call, for elements of type T.
template <class T>
void plan_row_operator(const Call& call, const RowOperands& at, const RowShape& shape,
                       void (*kernel)(const kernels::RowProblem<kernels::Wide<T>>&, void*), Plan& plan);

}  // namespace descend
