// The cells of LSTM and GRU, which PyTorch computes by operators of their own on any device but the CPU.
#pragma once

#include <torch/library.h>

namespace descend::npu {

void register_cells(torch::Library& library);

}  // namespace descend::npu
