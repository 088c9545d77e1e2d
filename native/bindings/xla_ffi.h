// The part of XLA's foreign function interface that is used here. Its binary interface is stable, and newer versions
// only add to it (https://openxla.org/xla/custom_call; xla/ffi/api/c_api.h in jaxlib's include folder). So JAX need not
// be there when Descend is built. tests/test_jax_operators.py compares these layouts with the header.
#pragma once

#include <cstddef>
#include <cstdint>

namespace descend::xla {

// An extension of a structure, in a linked list.
struct Extension {
  size_t struct_size;
  int32_t type;
  Extension* next;
};
inline constexpr int32_t kMetadata = 1;  // the type of MetadataExtension

struct Version {
  size_t struct_size;
  Extension* extensions;
  int32_t major, minor;
};

// XLA asks a handler for this in a call with a MetadataExtension.
struct Metadata {
  size_t struct_size;
  Version version;  // the version that the handler was written for
  uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Error;  // a class of XLA; its receiver owns it

enum class ErrorCode : int32_t { kInvalidArgument = 3, kResourceExhausted = 8, kInternal = 13 };

struct ErrorArguments {
  size_t struct_size;
  Extension* extensions;
  const char* message;
  ErrorCode code;
};

// Its first fields.
struct Api {
  size_t struct_size;
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*create_error)(ErrorArguments* arguments);
};

enum class DataType : int32_t {
  kBool = 1,
  kInt32 = 4,
  kInt64 = 5,
  kFloat16 = 10,
  kFloat = 11,
  kDouble = 12,
  kBfloat16 = 16
};

struct Buffer {
  size_t struct_size;
  Extension* extensions;
  DataType dtype;
  void* data;
  int64_t rank;
  int64_t* sizes;
};
inline constexpr int32_t kBuffer = 1;  // the type of operands and results that are a Buffer

struct Span {
  const char* data;
  size_t size;
};

enum class AttributeType : int32_t { kArray = 1, kScalar = 3, kString = 4 };

struct Array {
  DataType dtype;
  size_t size;
  void* data;
};

struct Scalar {
  DataType dtype;
  void* value;
};

// Operands, or results.
struct Values {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  int32_t* types;
  void** values;
};

struct Attributes {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  AttributeType* types;
  Span** names;
  void** values;
};

inline constexpr int32_t kExecute = 3;  // the stage in which the buffers have their data

// Its first fields.
struct CallFrame {
  size_t struct_size;
  Extension* extensions;
  const Api* api;
  void* context;
  int32_t stage;
  Values operands;
  Values results;
  Attributes attributes;
};

}  // namespace descend::xla
