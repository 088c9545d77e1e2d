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

// Tensors in the signature's order, which has all inputs before all outputs. One that is read and written is an input,
// and as an output a copy of it stands behind all of the signature's.
struct Call {
  Op op = Op::kRmsNorm;
  const descend::Operator* table = nullptr;
  Product product = Product::kHost;
  std::vector<TensorArgument> tensors;
  size_t inputs = 0;
  size_t given = 0;                // of the tensors, those that the signature has
  std::vector<size_t> in_place{};  // those that are read and written, in the order of their copies
  ListArgument list;               // normalizedShape, actSeqLenOptional
  ListArgument mask;               // outputMask
  int64_t groups = 1, block = 1, stride = 1, lengths_type = 0;
  double epsilon = 0, scale = 1;
  bool flags[2] = {false, false};             // activateSwish; dgammaIsRequire and dbetaIsRequire; fixTriuMask
  const char* text = nullptr;                 // dataFormatOptional, layoutOptional
  std::vector<Attribute> attributes;          // of kOfTable, in the signature's order
  bool has_variance = false;                  // a type whose variances stand where the function has rstd
  bool certain = false;                       // of kOfTable: all shapes and attributes are as the table says
  bool no_size = false, no_executor = false;  // workspaceSize or executor is null

  // Makes the copies of tensors that are read and written the same as these.
  void copy_in_place() {
    tensors.resize(given);
    for (size_t i : in_place) tensors.push_back(TensorArgument(tensors[i]));
  }
  // The tensor of the signature that tensor i is.
  size_t own(size_t i) const { return i < given ? i : in_place[i - given]; }
};

}  // namespace fuzz
