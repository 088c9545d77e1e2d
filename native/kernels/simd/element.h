// Element types of the kernels, the type that each is computed in, and how many are worked on at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/base.h"

namespace descend::kernels {

struct float16 {
  uint16_t bits;
};
struct bfloat16 {
  uint16_t bits;
};

// 16-bit and 32-bit elements are computed in float, double in double.
template <class T>
struct WideOf {
  using type = float;
};
template <>
struct WideOf<double> {
  using type = double;
};
template <class T>
using Wide = typename WideOf<T>::type;

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Bytes that kernels work on at a time, in the type of the arithmetic; and so many elements made up to whole packs.
inline constexpr size_t kPackBytes = 128;
template <class W>
int64_t whole_packs(int64_t n) {
  constexpr int64_t kLanes = kPackBytes / sizeof(W);
  return ceil_div(n, kLanes) * kLanes;
}

// A parameter of each column: in the type of the arithmetic or, where `own` is given, in that of the elements. Each
// thread then widens it for itself: a copy that one of them has just made would come late to the others' caches.
template <class T>
struct ColumnParameter {
  const Wide<T>* wide = nullptr;
  const T* own = nullptr;

  ColumnParameter from(int64_t column) const { return {wide ? wide + column : nullptr, own ? own + column : nullptr}; }
};

// Sums of columns on their way to double or to the end: partial sums in slots [slots][columns], which sum_slots adds,
// or, where the kernel needs no slots, the sums themselves [columns], in the type of the arithmetic or in that of the
// elements. All null: not wanted.
template <class T>
struct ColumnSums {
  double* slots = nullptr;
  Wide<T>* wide = nullptr;
  T* own = nullptr;

  bool wanted() const { return slots != nullptr || wide != nullptr || own != nullptr; }
  ColumnSums from(int64_t column) const {
    return {slots ? slots + column : nullptr, wide ? wide + column : nullptr, own ? own + column : nullptr};
  }
  void clear(int64_t columns) const {
    if (slots != nullptr) std::fill_n(slots, columns, 0.0);
    if (wide != nullptr) std::fill_n(wide, columns, Wide<T>{0});
    if (own != nullptr) std::fill_n(own, columns, T{0});
  }
};

// Of a few numbers std::copy_n may become a loop over their bytes.
template <class T>
HWY_INLINE void copy_few(const T* from, int64_t n, T* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = from[i];
}

// The four element types that tensors of numbers have; for places that choose one at run time.
enum class Element : uint8_t { kFloat32, kFloat16, kBfloat16, kFloat64 };

constexpr int64_t size_of(Element element) {
  switch (element) {
    case Element::kFloat16:
    case Element::kBfloat16:
      return 2;
    case Element::kFloat64:
      return 8;
    default:
      return 4;
  }
}

// The element type of a C++ type.
template <class T>
inline constexpr Element kElementOf = Element::kFloat32;
template <>
inline constexpr Element kElementOf<float16> = Element::kFloat16;
template <>
inline constexpr Element kElementOf<bfloat16> = Element::kBfloat16;
template <>
inline constexpr Element kElementOf<double> = Element::kFloat64;

// Calls f with a value of the C++ type of an element type.
template <class F>
HWY_INLINE void with_element_type(Element element, F f) {
  switch (element) {
    case Element::kFloat32:
      return f(float{});
    case Element::kFloat16:
      return f(float16{});
    case Element::kBfloat16:
      return f(bfloat16{});
    case Element::kFloat64:
      return f(double{});
  }
}

// A matrix whose rows are contiguous; `stride` counts elements from one row to the next and may be 0 or negative.
template <class T>
struct Rows {
  T* data;
  int64_t stride;

  T* row(int64_t i) const { return data + i * stride; }
};

}  // namespace descend::kernels
