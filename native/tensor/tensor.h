// A tensor's metadata: a strided view of a storage. Creating one judges nothing; phase 1 does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/rows/convert.h"
#include "runtime/status.h"
#include "tensor/dims.h"
#include "tensor/dtype.h"

namespace descend {

// Memory formats, with CANN's numbers.
enum class Format : int32_t {
  kUndefined = -1,
  kNCHW = 0,
  kNHWC = 1,
  kND = 2,
  kNC1HWC0 = 3,
  kFractalZ = 4,
  kNC1HWC0C04 = 12,
  kHWCN = 16,
  kNDHWC = 27,
  kFractalNZ = 29,
  kNCDHW = 30,
  kNDC1HWC0 = 32,
  kFractalZ3D = 33,
  kNC = 35,
  kNCL = 47,
};
std::string format_name(Format format);
bool is_public(Format format);  // unpadded: read as ND in the order of its dimensions

struct Tensor {
  static constexpr uint64_t kMaxRank = 8;

  Dtype dtype = Dtype::kUndefined;
  Format format = Format::kND;
  Dims shape;
  Dims strides;        // in elements
  int64_t offset = 0;  // in elements, from data to element [0, ..., 0]
  Dims storage_shape;
  void* data = nullptr;  // where the storage begins

  uint64_t rank() const { return shape.size(); }
  // Elements of the view; only for a tensor that check_layout accepts.
  int64_t elements() const;
  bool empty() const { return elements() == 0; }
};

Tensor contiguous_tensor(Dtype dtype, const Dims& shape, void* data = nullptr);
Dims contiguous_strides(const Dims& shape);

// Strides of dimensions of 1 and the offset do not count.
bool is_contiguous(const Tensor& tensor);

// The addresses from a view's first byte to its last: [begin, end); empty where it has no elements or no memory.
struct ByteRange {
  intptr_t begin = 0;
  intptr_t end = 0;

  bool meets(const ByteRange& other) const { return begin < other.end && other.begin < end; }
};
ByteRange byte_range(const Tensor& tensor);
bool meets(const Tensor& tensor, const ByteRange& range);

// Rank, signs and sizes within bounds, view inside its storage, storage inside its allocation where the library knows
// it. The sentence lacks its subject ("has rank 9, ..."): the caller puts the parameter's name before it.
// `touched`, if not null, becomes byte_range(tensor) of what is accepted.
Status check_layout(const Tensor& tensor, ByteRange* touched = nullptr);

// Whether two elements of one view share a place (a stride of 0, or overlapping windows). kPerhaps: of three dimensions
// or more it may take too long to tell.
enum class SelfOverlap { kNo, kYes, kPerhaps };
SelfOverlap self_overlap(const Tensor& tensor);

enum class Sharing {
  kDisjoint,  // no byte in common, or equal strides prove that no element is shared
  kSame,      // the same elements in the same order, of the same type
  kOverlap,   // anything else, or not proven
};
Sharing sharing(const Tensor& a, const Tensor& b);

// The view as a matrix whose leading `leading` dimensions are the rows, if its rows are contiguous and evenly spaced.
std::optional<int64_t> row_stride(const Tensor& tensor, uint64_t leading);

// Operand for kernels::convert from one view to another of the same number of elements and the same shape.
kernels::Strided strided_pair(const Tensor& from, const Tensor& to);

}  // namespace descend
