// Element types of tensors, with CANN's numbers, and sets of them for the contracts' tables.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "kernels/simd/element.h"

namespace descend {

enum class Dtype : int32_t {
  kUndefined = -1,
  kFloat = 0,
  kFloat16 = 1,
  kInt8 = 2,
  kInt32 = 3,
  kUint8 = 4,
  kInt16 = 6,
  kUint16 = 7,
  kUint32 = 8,
  kInt64 = 9,
  kUint64 = 10,
  kDouble = 11,
  kBool = 12,
  kString = 13,
  kComplex64 = 16,
  kComplex128 = 17,
  kBfloat16 = 27,
  kInt4 = 29,
  kUint1 = 30,
  kComplex32 = 33,
  kHifloat8 = 34,
  kFloat8E5m2 = 35,
  kFloat8E4m3fn = 36,
  kFloat8E8m0 = 37,
  kFloat6E3m2 = 38,
  kFloat6E2m3 = 39,
  kFloat4E2m1 = 40,
  kFloat4E1m2 = 41,
};

std::string dtype_name(Dtype dtype);       // "FLOAT16"; "99" for a number that is none
bool is_floating(Dtype dtype);             // FLOAT, FLOAT16, BFLOAT16, DOUBLE
kernels::Element element_of(Dtype dtype);  // of a floating dtype

// Bytes of one element; 0 for strings, packed types and unknown numbers.
constexpr int64_t dtype_size(Dtype dtype) {
  switch (dtype) {
    case Dtype::kInt8:
    case Dtype::kUint8:
    case Dtype::kBool:
    case Dtype::kHifloat8:
    case Dtype::kFloat8E5m2:
    case Dtype::kFloat8E4m3fn:
    case Dtype::kFloat8E8m0:
      return 1;
    case Dtype::kFloat16:
    case Dtype::kBfloat16:
    case Dtype::kInt16:
    case Dtype::kUint16:
      return 2;
    case Dtype::kFloat:
    case Dtype::kInt32:
    case Dtype::kUint32:
    case Dtype::kComplex32:
      return 4;
    case Dtype::kDouble:
    case Dtype::kInt64:
    case Dtype::kUint64:
    case Dtype::kComplex64:
      return 8;
    case Dtype::kComplex128:
      return 16;
    default:
      return 0;
  }
}

// A set of the dtypes that operators know, for tables.
class DtypeSet {
 public:
  constexpr DtypeSet() = default;
  constexpr DtypeSet(std::initializer_list<Dtype> list) {
    for (Dtype dtype : list) bits_ |= bit(dtype);
  }
  constexpr bool has(Dtype dtype) const { return (bits_ & bit(dtype)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr DtypeSet operator|(DtypeSet other) const { return from_bits(bits_ | other.bits_); }
  constexpr DtypeSet without(Dtype dtype) const { return from_bits(bits_ & ~bit(dtype)); }
  constexpr bool operator==(const DtypeSet&) const = default;

 private:
  static constexpr uint64_t bit(Dtype dtype) {
    const auto number = static_cast<int32_t>(dtype);
    return number >= 0 && number < 64 ? uint64_t{1} << number : 0;
  }
  static constexpr DtypeSet from_bits(uint64_t bits) {
    DtypeSet set;
    set.bits_ = bits;
    return set;
  }
  uint64_t bits_ = 0;
};
std::string list_of(DtypeSet set);  // "FLOAT, FLOAT16 or BFLOAT16"

inline constexpr DtypeSet kFloat32Only{Dtype::kFloat};
inline constexpr DtypeSet kDeviceFloats{Dtype::kFloat, Dtype::kFloat16, Dtype::kBfloat16};
inline constexpr DtypeSet kAllFloats{Dtype::kFloat, Dtype::kFloat16, Dtype::kBfloat16, Dtype::kDouble};

}  // namespace descend
