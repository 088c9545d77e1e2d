// The collectives of torch.distributed for tensors of device `npu`.
#pragma once

namespace descend::npu {

// Has them computed by the process group's backend for the CPU, on the same memory.
void register_collectives();

}  // namespace descend::npu
