#include "tensor/dtype.h"

#include <vector>

namespace descend {
namespace {

struct Entry {
  Dtype dtype;
  const char* name;
  int64_t size;
};
constexpr Entry kEntries[] = {
    {Dtype::kFloat, "FLOAT", 4},         {Dtype::kFloat16, "FLOAT16", 2},
    {Dtype::kBfloat16, "BFLOAT16", 2},   {Dtype::kDouble, "DOUBLE", 8},
    {Dtype::kInt8, "INT8", 1},           {Dtype::kInt16, "INT16", 2},
    {Dtype::kInt32, "INT32", 4},         {Dtype::kInt64, "INT64", 8},
    {Dtype::kUint8, "UINT8", 1},         {Dtype::kUint16, "UINT16", 2},
    {Dtype::kUint32, "UINT32", 4},       {Dtype::kUint64, "UINT64", 8},
    {Dtype::kBool, "BOOL", 1},           {Dtype::kComplex32, "COMPLEX32", 4},
    {Dtype::kComplex64, "COMPLEX64", 8}, {Dtype::kComplex128, "COMPLEX128", 16},
    {Dtype::kString, "STRING", 0},       {Dtype::kInt4, "INT4", 0},
    {Dtype::kUint1, "UINT1", 0},         {Dtype::kUndefined, "DT_UNDEFINED", 0},
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
  return entry ? entry->name : "dtype " + std::to_string(static_cast<int32_t>(dtype));
}

int64_t dtype_size(Dtype dtype) {
  const Entry* entry = find(dtype);
  return entry ? entry->size : 0;
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
