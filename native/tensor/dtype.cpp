#include "tensor/dtype.h"

#include <vector>

namespace descend {
namespace {

struct Entry {
  Dtype dtype;
  const char* name;
};
constexpr Entry kEntries[] = {
    {Dtype::kFloat, "FLOAT"},
    {Dtype::kFloat16, "FLOAT16"},
    {Dtype::kBfloat16, "BFLOAT16"},
    {Dtype::kDouble, "DOUBLE"},
    {Dtype::kInt8, "INT8"},
    {Dtype::kInt16, "INT16"},
    {Dtype::kInt32, "INT32"},
    {Dtype::kInt64, "INT64"},
    {Dtype::kUint8, "UINT8"},
    {Dtype::kUint16, "UINT16"},
    {Dtype::kUint32, "UINT32"},
    {Dtype::kUint64, "UINT64"},
    {Dtype::kBool, "BOOL"},
    {Dtype::kComplex32, "COMPLEX32"},
    {Dtype::kComplex64, "COMPLEX64"},
    {Dtype::kComplex128, "COMPLEX128"},
    {Dtype::kString, "STRING"},
    {Dtype::kInt4, "INT4"},
    {Dtype::kUint1, "UINT1"},
    {Dtype::kHifloat8, "HIFLOAT8"},
    {Dtype::kFloat8E5m2, "FLOAT8_E5M2"},
    {Dtype::kFloat8E4m3fn, "FLOAT8_E4M3FN"},
    {Dtype::kFloat8E8m0, "FLOAT8_E8M0"},
    {Dtype::kFloat6E3m2, "FLOAT6_E3M2"},
    {Dtype::kFloat6E2m3, "FLOAT6_E2M3"},
    {Dtype::kFloat4E2m1, "FLOAT4_E2M1"},
    {Dtype::kFloat4E1m2, "FLOAT4_E1M2"},
    {Dtype::kUndefined, "DT_UNDEFINED"},
};

const Entry* find(Dtype dtype) {
  for (const Entry& entry : kEntries) {
    if (entry.dtype == dtype) return &entry;
  }
  return nullptr;
}

}  // namespace

std::string dtype_name(Dtype dtype) {
  const Entry* entry = find(dtype);
  return entry ? entry->name : std::to_string(static_cast<int32_t>(dtype));
}

bool is_floating(Dtype dtype) { return kAllFloats.has(dtype); }

kernels::Element element_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat16:
      return kernels::Element::kFloat16;
    case Dtype::kBfloat16:
      return kernels::Element::kBfloat16;
    case Dtype::kDouble:
      return kernels::Element::kFloat64;
    default:
      return kernels::Element::kFloat32;
  }
}

std::string list_of(DtypeSet set) {
  std::vector<const char*> names;
  for (const Entry& entry : kEntries) {
    if (set.has(entry.dtype)) names.push_back(entry.name);
  }
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    text += i == 0 ? "" : i + 1 == names.size() ? " or " : ", ";
    text += names[i];
  }
  return text;
}

}  // namespace descend
