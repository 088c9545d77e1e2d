// The elements of a call's tensors: which are touched, and where they lie.
#include <algorithm>

#include "contract.h"
#include "table.h"

namespace fuzz {
namespace {

bool is_empty(const Shape& shape) { return std::count(shape.begin(), shape.end(), 0) > 0; }

}  // namespace

int64_t count_of(const Shape& shape) {
  const bool empty = is_empty(shape);
  int64_t count = 1;
  for (int64_t dim : shape) {
    if (dim < 0) return -1;
    if (!empty && (__builtin_mul_overflow(count, dim, &count) || count >= kMany)) return -1;
  }
  return empty ? 0 : count;
}

bool uses(const Call& call, size_t i) {
  if (call.op == Op::kOfTable) return table_uses(call, i);
  if (call.op == Op::kLayerNormBackward) {
    if (i == 5) return false;  // biasOptional is not read
    const size_t output = i - call.inputs;
    return i < call.inputs || call.mask.values.size() != 3 || call.mask.values[output] != 0;
  }
  if (call.op == Op::kGroupNormSwishGrad && i >= 7) return call.flags[i - 7];
  const bool softmax = call.op == Op::kSoftmax || call.op == Op::kSoftmaxBackward;
  return !(softmax && i + 1 == call.inputs && call.flags[0]);
}

const std::vector<int64_t>* places(const TensorArgument& tensor) {
  thread_local std::vector<int64_t> result;
  const int64_t count = count_of(tensor.shape);
  if (count < 0) return nullptr;
  result.resize(static_cast<size_t>(count));
  if (count == 0) return &result;
  result[0] = tensor.offset;
  int64_t known = 1;  // the places along the axes so far; each becomes as many as the next axis is long, from the last
  for (size_t axis = 0; axis < tensor.shape.size(); ++axis) {
    const int64_t length = tensor.shape[axis];
    for (int64_t k = known - 1; k >= 0; --k) {
      const int64_t place = result[k];
      for (int64_t i = length - 1; i >= 0; --i) result[k * length + i] = place + i * tensor.strides[axis];
    }
    known *= length;
  }
  return &result;
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
