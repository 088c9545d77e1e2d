// The calling thread's device and context.
#pragma once

#include <cstdint>

#include "acl/acl_rt.h"

namespace descend::capi {

// The device of the thread's current context. A thread that has set neither a device nor a context works on device 0.
int32_t current_device();
// The same, but -1 for a thread that has set neither.
int32_t current_device_or_none();
// The thread's context, else the default one of its device.
aclrtContext current_context();
void set_current_context(aclrtContext context, int32_t device);
// To be called after contexts were removed: each thread then checks whether its own still exists.
void context_removed();

}  // namespace descend::capi
