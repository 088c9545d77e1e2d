// The elements of a call's tensors: which are touched, and where they lie.
#include <algorithm>

#include "contract.h"

namespace fuzz {
namespace {

bool is_empty(const Shape& shape) { return std::count(shape.begin(), shape.end(), 0) > 0; }

bool is_countable(const Shape& shape) {
  int64_t count = 1;
  for (int64_t dim : shape) {
    if (dim < 0) return false;
    if (!is_empty(shape) && (__builtin_mul_overflow(count, dim, &count) || count >= kMany)) return false;
  }
  return true;
}

}  // namespace

bool uses(const Call& call, size_t i) {
  if (call.op == Op::kLayerNormBackward) {
    if (i == 5) return false;  // biasOptional is not read
    const size_t output = i - call.inputs;
    return i < call.inputs || call.mask.values.size() != 3 || call.mask.values[output] != 0;
  }
  if (call.op == Op::kGroupNormSwishGrad && i >= 7) return call.flags[i - 7];
  const bool softmax = call.op == Op::kSoftmax || call.op == Op::kSoftmaxBackward;
  return !(softmax && i + 1 == call.inputs && call.flags[0]);
}

bool places(const TensorArgument& tensor, std::vector<int64_t>* result) {
  if (!is_countable(tensor.shape)) return false;
  result->assign(1, tensor.offset);
  if (is_empty(tensor.shape)) result->clear();
  for (size_t axis = 0; axis < tensor.shape.size() && !result->empty(); ++axis) {
    std::vector<int64_t> longer;
    for (int64_t place : *result) {
      for (int64_t i = 0; i < tensor.shape[axis]; ++i) longer.push_back(place + i * tensor.strides[axis]);
    }
    *result = std::move(longer);
  }
  return true;
}

int64_t element_size(int dtype) { return static_cast<int64_t>(aclDataTypeSize(static_cast<aclDataType>(dtype))); }

bool windows(const Call& call, int64_t tokens, std::vector<int64_t>* starts) {
  Shape ends = call.list.handle == Handle::kAlive ? call.list.values : Shape{};
  if (ends.empty()) ends = {tokens};
  __int128 begin = 0;
  for (int64_t number : ends) {
    const __int128 end = call.lengths_type == 1 && call.list.handle == Handle::kAlive && !call.list.values.empty()
                             ? begin + number
                             : __int128{number};
    if (number < 0 || end < begin || end > tokens) return false;
    for (__int128 start = begin; start + call.block <= end; start += call.stride) {
      starts->push_back(static_cast<int64_t>(start));
    }
    begin = end;
  }
  return true;
}

}  // namespace fuzz
