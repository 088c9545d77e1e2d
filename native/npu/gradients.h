// Waiting for PyTorch's autograd threads when the process ends.
#pragma once

#include <c10/core/Device.h>

namespace descend::npu {

// Waits until PyTorch's autograd thread of `device` has freed the graphs that it has computed. The thread may free them
// after backward() has returned. If it frees a Python object after Python has ended, PyTorch aborts.
void wait_for_graphs(c10::Device device);

}  // namespace descend::npu
