// Steps before and after a kernel: an operand that the kernel cannot take directly is copied through the workspace.
#pragma once

#include <algorithm>

#include "kernels/rows/convert.h"
#include "operators/operator.h"
#include "operators/plan.h"

namespace descend {

using kernels::kElementOf;
using kernels::with_element_type;

// The element type of the kernel: that of `main` if all of `rows` have it. Else float, or double if any tensor that the
// call uses is DOUBLE; tensors of other types are then converted before and after the kernel.
kernels::Element kernel_element(const Call& call, int main, std::initializer_list<int> rows);

// A tensor as a matrix: its last dimensions are the columns.
struct RowShape {
  uint64_t leading = 0;  // dimensions that count rows
  int64_t rows = 0;
  int64_t columns = 0;
};

// Rows of a matrix as a kernel takes them.
struct StagedRows {
  Place place;
  int64_t stride;

  template <class T>
  kernels::Rows<T> at(const Addresses& addresses) const {
    return {addresses.at<T>(place), stride};
  }
};

// Input i as rows of `columns` elements; its first `leading` dimensions count the rows. Used in place if the rows are
// contiguous, evenly spaced and of the wanted type, else copied.
StagedRows stage_rows(const Call& call, Plan& plan, int i, uint64_t leading, int64_t columns, kernels::Element wanted);

// Input i with any strides, but for its last dimension, which has no gaps. In place if it is so and of the wanted type,
// else copied; copied as well if `apart`, and an output has the same memory.
struct StagedGrid {
  Place place;
  Dims strides;  // in elements
};
StagedGrid stage_grid(const Call& call, Plan& plan, int i, kernels::Element wanted, bool apart = false);

// Input i as a contiguous vector of the wanted type. Copied if it is not one, or if an output has the same memory.
Place stage_vector(const Call& call, Plan& plan, int i, kernels::Element wanted);

// Input i as a parameter of each column: in place if it has the type of the elements, else as by stage_vector().
template <class T>
struct StagedParameter {
  Place place;
  bool own;

  kernels::ColumnParameter<T> at(const Addresses& addresses) const {
    if (own) return {.own = addresses.at<const T>(place)};
    return {.wide = addresses.at<const kernels::Wide<T>>(place)};
  }
};
bool is_in_place(const Call& call, int i,
                 kernels::Element wanted);  // as a contiguous vector; false if an output has the same memory
template <class T>
StagedParameter<T> stage_column_parameter(const Call& call, Plan& plan, int i) {
  if (sizeof(T) == 2 && is_in_place(call, i, kElementOf<T>)) {
    return {Plan::tensor(call, i), true};
  }
  return {stage_vector(call, plan, i, kElementOf<kernels::Wide<T>>), false};
}

// `count` copies of a number.
template <class W>
Place stage_copies(Plan& plan, int64_t count, W number) {
  const Place same = plan.scratch(count, sizeof(W));
  plan.step("fill", 1.0 * count * sizeof(W),
            [=](const Addresses& addresses) { std::fill_n(addresses.at<W>(same), count, number); });
  return same;
}

// A parameter that may be null: then it is `columns` copies of `missing`.
template <class T>
StagedParameter<T> stage_parameter(const Call& call, Plan& plan, int i, int64_t columns, int missing) {
  if (call.given(i)) return stage_column_parameter<T>(call, plan, i);
  return {stage_copies(plan, columns, static_cast<kernels::Wide<T>>(missing)), false};
}

// Output i likewise. The kernel writes to `place`. If that is a copy, finish() adds the step that writes it to the
// output.
class StagedOutput {
 public:
  static StagedOutput rows(const Call& call, Plan& plan, int i, uint64_t leading, int64_t columns,
                           kernels::Element written);
  static StagedOutput grid(const Call& call, Plan& plan, int i, kernels::Element written);
  static StagedOutput vector(const Call& call, Plan& plan, int i, kernels::Element written);

  StagedRows staged() const { return staged_; }
  Place place() const { return staged_.place; }
  Dims strides(const Call& call) const;  // of a grid
  void finish(const Call& call, Plan& plan) const;

 private:
  int parameter_ = 0;
  kernels::Element written_ = kernels::Element::kFloat32;
  StagedRows staged_{};
  bool copied_ = false;
};

// Output i (any shape of `columns` elements), for which a kernel writes partial sums into `slots` rows. finish() adds
// the step that sums the rows. If slots is 0, the kernel writes the sums to the output, or to one row if the output is
// not a contiguous vector of `element` or of the type of the arithmetic.
class StagedSums {
 public:
  StagedSums() = default;
  StagedSums(const Call& call, Plan& plan, int i, int64_t slots, int64_t columns, kernels::Element element);

  template <class T>
  kernels::ColumnSums<T> at(const Addresses& addresses) const {
    if (parameter_ < 0) return {};
    if (slots_ > 0) return {.slots = addresses.at<double>(place_)};
    if (own_) return {.own = addresses.at<T>(place_)};
    return {.wide = addresses.at<kernels::Wide<T>>(place_)};
  }
  void finish(const Call& call, Plan& plan) const;

 private:
  int parameter_ = -1;  // -1: the output is not computed
  int64_t slots_ = 0, columns_ = 0;
  bool own_ = false;  // the output has a narrower type than the arithmetic
  Place place_{};     // of the slots or of the output
};

}  // namespace descend
