// Calls that a capture does not see are refused: see descendRefuseInCapture.
#pragma once

#include "runtime/status.h"

namespace descend::capi {

// Fails in a thread that has called descendRefuseInCapture(1).
Status require_no_capture();

}  // namespace descend::capi
