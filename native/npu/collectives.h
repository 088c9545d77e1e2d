// The collectives of torch.distributed for tensors of device `npu`.
#pragma once

namespace descend::npu {

// Registers kernels that give the collectives to the process group's CPU backend, on the device's memory.
void register_collectives();

}  // namespace descend::npu
