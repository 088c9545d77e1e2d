// The cells of LSTM and GRU: on every device but the CPU PyTorch computes them by fused operators, which have no CPU
// kernel.
#pragma once

#include <torch/library.h>

namespace descend::npu {

void register_cells(torch::Library& library);

}  // namespace descend::npu
