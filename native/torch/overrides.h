// Puts the engine under PyTorch's own norms on the CPU, and takes it away again.
#pragma once

namespace descend::pytorch {

// Registers the kernels of norms.h for PyTorch's operators, or removes them: then PyTorch's own are called again.
// Neither does anything a second time. The caller sees to it that one call runs at a time; other threads may use the
// operators meanwhile.
void override_norms(bool on);

}  // namespace descend::pytorch
