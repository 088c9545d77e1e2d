// One call of an operator, as a fuzzer makes it up: what the C functions are given, in a form that the contract's
// model, the reference and the call itself all read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "acl/acl.h"

namespace descend {
struct Operator;
}

namespace fuzz {

enum class Op : uint8_t {
  kRmsNorm,
  kRmsNormGrad,
  kLayerNorm,
  kLayerNormBackward,
  kGroupNormSwish,
  kGroupNormSwishGrad,
  kNsaCompress,
  kNsaCompressGrad,
  kSoftmax,
  kSoftmaxBackward,
  kOfTable,  // one that is known by its table alone (table.h)
};
inline constexpr int kOps = 10;  // those before kOfTable

enum class Product : uint8_t { kHost, kA3, kA2Training, kA2Inference, k200I500A2, kInference, kTraining, kAscend950 };
inline constexpr int kProducts = 8;

using Shape = std::vector<int64_t>;

enum class Handle : uint8_t { kNull, kAlive, kDead };

struct TensorArgument {
  Handle handle = Handle::kAlive;
  int dtype = ACL_FLOAT;
  int format = ACL_FORMAT_ND;
  Shape shape, strides, storage;
  int64_t offset = 0;
  char* data = nullptr;
  size_t room = SIZE_MAX;  // bytes from `data` to the end of the allocation, for memory of this library
};

struct ListArgument {
  Handle handle = Handle::kNull;
  Shape values;
};

// A number of an operator that is known by its table alone.
struct Attribute {
  double real = 0;
  int64_t integer = 0;
};

// Tensors in the signature's order, which has all inputs before all outputs.
struct Call {
  Op op = Op::kRmsNorm;
  const descend::Operator* table = nullptr;
  Product product = Product::kHost;
  std::vector<TensorArgument> tensors;
  size_t inputs = 0;
  ListArgument list;  // normalizedShape, actSeqLenOptional
  ListArgument mask;  // outputMask
  int64_t groups = 1, block = 1, stride = 1, lengths_type = 0;
  double epsilon = 0, scale = 1;
  bool flags[2] = {false, false};             // activateSwish; dgammaIsRequire and dbetaIsRequire; fixTriuMask
  const char* text = nullptr;                 // dataFormatOptional, layoutOptional
  std::vector<Attribute> attributes;          // of kOfTable, in the signature's order
  bool certain = false;                       // of kOfTable: all shapes and attributes are as the table says
  bool no_size = false, no_executor = false;  // workspaceSize or executor is null
};

}  // namespace fuzz
