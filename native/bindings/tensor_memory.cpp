#include "bindings/tensor_memory.h"

#include <algorithm>
#include <limits>

namespace descend::python {

void set_memory(Tensor& tensor, void* first_element) {
  const int64_t size = dtype_size(tensor.dtype);
  int64_t low = 0, high = 0;
  for (uint64_t i = 0; i < tensor.rank(); ++i) {
    if (tensor.shape[i] == 0) {
      tensor.data = first_element;
      tensor.offset = 0;
      tensor.storage_shape = {0};
      return;
    }
    (tensor.strides[i] < 0 ? low : high) += (tensor.shape[i] - 1) * tensor.strides[i];
  }
  tensor.data = static_cast<char*>(first_element) + low * size;
  tensor.offset = -low;
  tensor.storage_shape = {high - low + 1};
}

void set_storage(Tensor& tensor) {
  __int128 low = 0, high = 0;
  for (uint64_t i = 0; i < tensor.rank(); ++i) {
    if (tensor.shape[i] < 1) {
      tensor.storage_shape = {0};
      return;
    }
    (tensor.strides[i] < 0 ? low : high) += static_cast<__int128>(tensor.shape[i] - 1) * tensor.strides[i];
  }
  constexpr __int128 kMost = std::numeric_limits<int64_t>::max();
  tensor.offset = static_cast<int64_t>(std::min(-low, kMost));
  tensor.storage_shape = {static_cast<int64_t>(std::min(high - low + 1, kMost))};
}

}  // namespace descend::python
