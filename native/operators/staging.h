// The steps around a kernel: operands that a kernel cannot take as they are go through the workspace.
#pragma once

#include "kernels/element.h"
#include "operators/operator.h"

namespace descend {

// The element type that a C++ type stands for.
template <class T>
inline constexpr kernels::Element kElementOf = kernels::Element::kFloat32;
template <>
inline constexpr kernels::Element kElementOf<kernels::float16> = kernels::Element::kFloat16;
template <>
inline constexpr kernels::Element kElementOf<kernels::bfloat16> = kernels::Element::kBfloat16;
template <>
inline constexpr kernels::Element kElementOf<double> = kernels::Element::kFloat64;

// Calls f with a value of the C++ type that an element type stands for.
template <class F>
void with_element_type(kernels::Element element, F f) {
  switch (element) {
    case kernels::Element::kFloat32:
      return f(float{});
    case kernels::Element::kFloat16:
      return f(kernels::float16{});
    case kernels::Element::kBfloat16:
      return f(kernels::bfloat16{});
    case kernels::Element::kFloat64:
      return f(double{});
  }
}

// The type that a kernel works in: that of `main` if all of `rows` share it; else float, or double if any tensor
// that the call uses is DOUBLE. Wider tensors are then converted on the way in and out.
kernels::Element kernel_element(const Call& call, int main, std::initializer_list<int> rows);

// Rows of a matrix as a kernel takes them.
struct StagedRows {
  Place place;
  int64_t stride;

  template <class T>
  kernels::Rows<T> at(const Addresses& addresses) const {
    return {addresses.at<T>(place), stride};
  }
};

// Input i as rows of `columns` elements, its first `leading` dimensions counting the rows: in place where the rows are
// contiguous, evenly spaced and of the wanted type, else through a copy.
StagedRows stage_rows(const Call& call, Plan& plan, int i, uint64_t leading, int64_t columns, kernels::Element wanted);

// Input i as a contiguous vector of the wanted type, copied where it is not one or where an output takes its place.
Place stage_vector(const Call& call, Plan& plan, int i, kernels::Element wanted);

// Input i as a parameter of each column: as it is where it is of the elements' own type, else as stage_vector() has it.
template <class T>
struct StagedParameter {
  Place place;
  bool own;

  kernels::ColumnParameter<T> at(const Addresses& addresses) const {
    if (own) return {.own = addresses.at<const T>(place)};
    return {.wide = addresses.at<const kernels::Wide<T>>(place)};
  }
};
bool is_in_place(const Call& call, int i, kernels::Element wanted);  // as a vector that no output takes the place of
template <class T>
StagedParameter<T> stage_column_parameter(const Call& call, Plan& plan, int i) {
  if (sizeof(T) == 2 && is_in_place(call, i, kElementOf<T>)) {
    return {Plan::tensor(call, i), true};
  }
  return {stage_vector(call, plan, i, kElementOf<kernels::Wide<T>>), false};
}

// Output i on the same terms: the kernel writes `place`, and finish() adds the step that brings it home, if one is due.
class StagedOutput {
 public:
  static StagedOutput rows(const Call& call, Plan& plan, int i, uint64_t leading, int64_t columns,
                           kernels::Element written);
  static StagedOutput vector(const Call& call, Plan& plan, int i, kernels::Element written);

  StagedRows staged() const { return staged_; }
  Place place() const { return staged_.place; }
  void finish(const Call& call, Plan& plan) const;

 private:
  int parameter_ = 0;
  kernels::Element written_ = kernels::Element::kFloat32;
  StagedRows staged_{};
  bool copied_ = false;
};

// Output i (any shape of `columns` elements), which a kernel makes in `slots` rows of partial sums, to be added by
// finish(). Where slots is 0, it writes the sums to the output itself or, if that is not a vector of `element` or of
// the type that this is computed in, to one slot.
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
  int parameter_ = -1;  // none: not wanted
  int64_t slots_ = 0, columns_ = 0;
  bool own_ = false;  // whether the output is of a narrower type than this is computed in
  Place place_{};     // of the slots or of the output
};

}  // namespace descend
