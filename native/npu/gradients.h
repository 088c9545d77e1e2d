// The end of PyTorch's threads for gradients.
#pragma once

#include <c10/core/Device.h>

namespace descend::npu {

// Waits until PyTorch's thread for the gradients of `device` has freed the graphs that it has computed. It may do so
// after the call of backward has returned. If it has to free a Python object once Python has ended, PyTorch aborts.
void wait_for_graphs(c10::Device device);

}  // namespace descend::npu
