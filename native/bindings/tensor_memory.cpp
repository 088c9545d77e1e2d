#include "bindings/tensor_memory.h"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace descend::python {

void set_memory(Tensor& tensor, void* first_element) {
  set_storage(tensor);
  // As numbers: an array may lie about its shape and strides. What reaches too far is refused by check_layout.
  const uintptr_t before = static_cast<uintptr_t>(tensor.offset) * dtype_size(tensor.dtype);
  tensor.data = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(first_element) - before);
}

void set_storage(Tensor& tensor) {
  __int128 low = 0, high = 0;
  for (uint64_t i = 0; i < tensor.rank(); ++i) {
    if (tensor.shape[i] < 1) {
      tensor.offset = 0;
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
