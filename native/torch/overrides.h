// Makes the engine compute PyTorch's own norms on the CPU, and undoes that.
#pragma once

namespace descend::pytorch {

// Registers the kernels of norms.h for PyTorch's operators, or removes them, so that PyTorch's own kernels are called
// again. Does nothing if that is the state already. Calls must not run concurrently, but other threads may use the
// operators meanwhile.
void override_norms(bool on);

}  // namespace descend::pytorch
