#include "tensor/tensor.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "runtime/memory.h"

namespace descend {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 62;

// Product of non-negative dimensions; false where those that are not 0 come to more than `most`.
bool product(const Dims& dims, int64_t most, int64_t* result) {
  bool empty = false;
  int64_t value = 1;
  for (int64_t dim : dims) {
    empty = empty || dim == 0;
    if (dim != 0 && (__builtin_mul_overflow(value, dim, &value) || value > most)) return false;
  }
  *result = empty ? 0 : value;
  return true;
}

// The lowest and highest element index of a view relative to its element [0, ..., 0]; false on overflow.
bool extent(const Tensor& tensor, int64_t* low, int64_t* high) {
  *low = *high = 0;
  for (uint64_t i = 0; i < tensor.rank(); ++i) {
    int64_t reach;
    if (__builtin_mul_overflow(tensor.shape[i] - 1, tensor.strides[i], &reach)) return false;
    int64_t* end = reach < 0 ? low : high;
    if (__builtin_add_overflow(*end, reach, end)) return false;
  }
  return true;
}

// Dimensions as terms of a sum d[0] * stride[0] + d[1] * stride[1] + ..., strides positive and descending.
struct Term {
  int64_t stride;
  int64_t low;  // bounds of d
  int64_t high;
};
struct Terms {
  std::array<Term, Tensor::kMaxRank> list;
  size_t count = 0;

  void add(const Term& term) {
    size_t i = count++;
    for (; i > 0 && list[i - 1].stride < term.stride; --i) list[i] = list[i - 1];
    list[i] = term;
  }
};

// The least d from 0 on with d * a = b modulo m; -1 if there is none. a and m are positive.
int64_t least_solution(int64_t a, int64_t b, int64_t m) {
  int64_t gcd = m, rest = a % m, factor = 0, next = 1;  // gcd = factor * a modulo m, and so on
  while (rest != 0) {
    const int64_t quotient = gcd / rest;
    gcd = std::exchange(rest, gcd % rest);
    factor = std::exchange(next, factor - quotient * next);
  }
  if (b % gcd != 0) return -1;
  const int64_t period = m / gcd;
  const auto d = static_cast<int64_t>(static_cast<__int128>(b / gcd % period) * factor % period);
  return d < 0 ? d + period : d;
}

// Whether some choice of d in bounds makes the sum of terms[k...] equal target. `budget` bounds the search: once it is
// negative, the answer is "perhaps", which counts as yes.
bool reaches(int64_t target, const Terms& terms, size_t k, int* budget) {
  if (k == terms.count) return target == 0;
  if (--*budget < 0) return true;
  int64_t rest_low = 0, rest_high = 0;
  for (size_t j = k + 1; j < terms.count; ++j) {
    rest_low += terms.list[j].low * terms.list[j].stride;
    rest_high += terms.list[j].high * terms.list[j].stride;
  }
  const Term& term = terms.list[k];
  const auto floor_div = [&](int64_t a) { return a / term.stride - (a % term.stride < 0); };
  // d * stride must lie in [target - rest_high, target - rest_low].
  const int64_t first = std::max(term.low, -floor_div(-(target - rest_high)));
  const int64_t last = std::min(term.high, floor_div(target - rest_low));
  if (k + 2 == terms.count && first <= last) {  // any such d leaves the last term within its bounds
    const int64_t more = least_solution(term.stride, target - first * term.stride, terms.list[k + 1].stride);
    return more >= 0 && more <= last - first;
  }
  for (int64_t d = first; d <= last; ++d) {
    if (reaches(target - d * term.stride, terms, k + 1, budget)) return true;
  }
  return false;
}

constexpr int kSearchBudget = 4096;

}  // namespace

std::string to_string(const Dims& dims) {
  constexpr uint64_t kMost = 16;
  std::string text = "[";
  for (uint64_t i = 0; i < dims.size() && i < kMost; ++i) text += (i ? ", " : "") + std::to_string(dims[i]);
  return text + (dims.size() > kMost ? ", ...]" : "]");
}

std::string format_name(Format format) {
  switch (format) {
    case Format::kUndefined:
      return "UNDEFINED";
    case Format::kNCHW:
      return "NCHW";
    case Format::kNHWC:
      return "NHWC";
    case Format::kND:
      return "ND";
    case Format::kNC1HWC0:
      return "NC1HWC0";
    case Format::kFractalZ:
      return "FRACTAL_Z";
    case Format::kNC1HWC0C04:
      return "NC1HWC0_C04";
    case Format::kHWCN:
      return "HWCN";
    case Format::kNDHWC:
      return "NDHWC";
    case Format::kFractalNZ:
      return "FRACTAL_NZ";
    case Format::kNCDHW:
      return "NCDHW";
    case Format::kNDC1HWC0:
      return "NDC1HWC0";
    case Format::kFractalZ3D:
      return "FRACTAL_Z_3D";
    case Format::kNC:
      return "NC";
    case Format::kNCL:
      return "NCL";
  }
  return std::to_string(static_cast<int32_t>(format));
}

bool is_public(Format format) {
  switch (format) {
    case Format::kND:
    case Format::kNCHW:
    case Format::kNHWC:
    case Format::kNCL:
    case Format::kNC:
    case Format::kHWCN:
    case Format::kNDHWC:
    case Format::kNCDHW:
      return true;
    default:
      return false;
  }
}

int64_t Tensor::elements() const {
  int64_t count = 1;
  for (int64_t dim : shape) count *= dim;
  return count;
}

Dims contiguous_strides(const Dims& shape) {
  Dims strides = shape;
  int64_t stride = 1;
  for (uint64_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    // Unchecked shapes may overflow here; check_layout refuses them later.
    stride = static_cast<int64_t>(static_cast<uint64_t>(stride) * static_cast<uint64_t>(shape[i]));
  }
  return strides;
}

Tensor contiguous_tensor(Dtype dtype, const Dims& shape, void* data) {
  Tensor tensor;
  tensor.dtype = dtype;
  tensor.shape = shape;
  tensor.strides = contiguous_strides(shape);
  tensor.storage_shape = shape;
  tensor.data = data;
  return tensor;
}

bool is_contiguous(const Tensor& tensor) {
  if (tensor.empty()) return true;
  int64_t expected = 1;
  for (uint64_t i = tensor.rank(); i-- > 0;) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

Status check_layout(const Tensor& tensor, ByteRange* touched) {
  const auto invalid = [](const auto&... parts) { return failure(Code::kParamInvalid, parts...); };
  if (tensor.rank() > Tensor::kMaxRank) {
    return invalid("has shape ", to_string(tensor.shape), " of rank ", tensor.rank(), ", but the rank must be at most ",
                   Tensor::kMaxRank, ".");
  }
  for (int64_t dim : tensor.shape) {
    if (dim < 0) return invalid("has shape ", to_string(tensor.shape), ", but no dimension may be negative.");
  }
  for (int64_t dim : tensor.storage_shape) {
    if (dim < 0) {
      return invalid("has a storage of shape ", to_string(tensor.storage_shape), ", but no dimension may be negative.");
    }
  }
  const int64_t size = dtype_size(tensor.dtype);
  int64_t elements, storage;
  const auto too_large = [&](const char* what, const Dims& dims) {
    const bool empty = std::find(dims.begin(), dims.end(), 0) != dims.end();
    return invalid(
        "has ", what, to_string(dims),
        empty ? ", which would be more than 2^62 bytes if it were not empty." : ", which is more than 2^62 bytes.");
  };
  if (!product(tensor.shape, kMaxBytes / size, &elements)) return too_large("shape ", tensor.shape);
  if (!product(tensor.storage_shape, kMaxBytes / size, &storage)) {
    return too_large("a storage of shape ", tensor.storage_shape);
  }
  if (elements == 0) return {};
  int64_t low, high;
  if (!extent(tensor, &low, &high) || __builtin_add_overflow(low, tensor.offset, &low) ||
      __builtin_add_overflow(high, tensor.offset, &high) || low < 0 || high >= storage) {
    return invalid("has shape ", to_string(tensor.shape), ", strides ", to_string(tensor.strides), " and offset ",
                   tensor.offset, ", which reaches outside its storage of ", storage,
                   storage == 1 ? " element." : " elements.");
  }
  if (const Allocation allocation = find_allocation(tensor.data)) {
    if (const size_t room = allocation.room(tensor.data); static_cast<size_t>(storage * size) > room) {
      return invalid("has a storage of ", storage * size, " bytes, but the allocation that it lies in has ", room,
                     " bytes from there on.");
    }
  }
  if (touched != nullptr && tensor.data != nullptr) {
    const auto data = reinterpret_cast<intptr_t>(tensor.data);
    *touched = {data + low * size, data + (high + 1) * size};
  }
  return {};
}

ByteRange byte_range(const Tensor& tensor) {
  int64_t low, high;
  if (tensor.data == nullptr || tensor.empty() || !extent(tensor, &low, &high)) return {};
  const int64_t size = dtype_size(tensor.dtype);
  const auto data = reinterpret_cast<intptr_t>(tensor.data);
  return {data + (tensor.offset + low) * size, data + (tensor.offset + high + 1) * size};
}

// The whole storage, which holds the view: quicker to tell.
static ByteRange storage_range(const Tensor& tensor) {
  int64_t bytes = dtype_size(tensor.dtype);
  for (int64_t dim : tensor.storage_shape) bytes *= dim;
  const auto data = reinterpret_cast<intptr_t>(tensor.data);
  return {data, data + bytes};
}

bool meets(const Tensor& tensor, const ByteRange& range) {
  return storage_range(tensor).meets(range) && byte_range(tensor).meets(range);
}

SelfOverlap self_overlap(const Tensor& tensor) {
  if (is_contiguous(tensor)) return SelfOverlap::kNo;
  Terms terms;
  for (uint64_t i = 0; i < tensor.rank(); ++i) {
    const int64_t reach = tensor.shape[i] - 1;
    if (reach == 0) continue;
    if (tensor.strides[i] == 0) return SelfOverlap::kYes;
    terms.add({std::abs(tensor.strides[i]), -reach, reach});
  }
  int budget = kSearchBudget;
  // Two elements share a place where a sum of terms that are not all 0 is 0; its first term that is not may be
  // positive.
  for (size_t first = 0; first < terms.count; ++first) {
    Terms rest = terms;
    rest.list[first].low = 1;
    if (reaches(0, rest, first, &budget)) return budget < 0 ? SelfOverlap::kPerhaps : SelfOverlap::kYes;
  }
  return SelfOverlap::kNo;
}

Sharing sharing(const Tensor& a, const Tensor& b) {
  if (!storage_range(a).meets(storage_range(b))) return Sharing::kDisjoint;
  if (!byte_range(a).meets(byte_range(b))) return Sharing::kDisjoint;
  if (a.dtype != b.dtype || a.rank() != b.rank()) return Sharing::kOverlap;

  const int64_t size = dtype_size(a.dtype);
  const auto first = [size](const Tensor& t) { return reinterpret_cast<intptr_t>(t.data) + t.offset * size; };
  const int64_t distance = first(b) - first(a);
  bool same_shape = true;
  Terms terms;
  for (uint64_t i = 0; i < a.rank(); ++i) {
    same_shape = same_shape && a.shape[i] == b.shape[i];
    if (a.shape[i] == 1 && b.shape[i] == 1) continue;
    if (a.shape[i] != 1 && b.shape[i] != 1 && a.strides[i] != b.strides[i]) return Sharing::kOverlap;
    const int64_t stride = a.shape[i] != 1 ? a.strides[i] : b.strides[i];
    // Index i of a meets index j of b where sum((i - j) * stride) equals the distance.
    const int64_t low = -(b.shape[i] - 1), high = a.shape[i] - 1;
    if (stride > 0) terms.add({stride, low, high});
    if (stride < 0) terms.add({-stride, -high, -low});
  }
  if (same_shape && distance == 0) return Sharing::kSame;
  if (distance % size != 0) return Sharing::kOverlap;
  int budget = kSearchBudget;
  return reaches(distance / size, terms, 0, &budget) ? Sharing::kOverlap : Sharing::kDisjoint;
}

std::optional<int64_t> row_stride(const Tensor& tensor, uint64_t leading) {
  if (tensor.empty()) return 0;  // whose strides may be any numbers
  int64_t expected = 1;
  for (uint64_t i = tensor.rank(); i-- > leading;) {
    if (tensor.shape[i] == 1) continue;
    if (tensor.strides[i] != expected) return std::nullopt;
    expected *= tensor.shape[i];
  }
  std::optional<int64_t> stride;
  int64_t next = 0;
  for (uint64_t i = leading; i-- > 0;) {
    if (tensor.shape[i] == 1) continue;
    if (!stride) {
      stride = tensor.strides[i];
    } else if (tensor.strides[i] != next) {
      return std::nullopt;
    }
    next = tensor.strides[i] * tensor.shape[i];
  }
  return stride.value_or(expected);
}

kernels::Strided strided_pair(const Tensor& from, const Tensor& to) {
  kernels::Strided pair;
  pair.rank = static_cast<int>(from.rank());
  for (uint64_t i = 0; i < from.rank(); ++i) {
    pair.shape[i] = from.shape[i];
    pair.from_stride[i] = from.strides[i];
    pair.to_stride[i] = to.strides[i];
  }
  return pair;
}

}  // namespace descend
