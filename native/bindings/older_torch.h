// PyTorch before release 2.10 has no C functions of DLPack. These stand in for them: they read a tensor's attributes.
#pragma once

#include "bindings/dlpack.h"

namespace descend::python {

// Has borrow_from_object alone. What it describes lives until the thread's next call.
const dlpack::ExchangeApi& older_torch_api();

}  // namespace descend::python
