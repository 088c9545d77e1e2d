// Where the memory of a tensor begins and how large it is, from its shape and strides.
#pragma once

#include "tensor/tensor.h"

namespace descend::python {

// Sets data, offset and storage from the address of element [0, ..., 0]. With negative strides the data begins before
// it.
void set_memory(Tensor& tensor, void* first_element);

// Sets an offset and a storage that hold all elements of a tensor without memory, as far as 64 bits can say.
void set_storage(Tensor& tensor);

}  // namespace descend::python
