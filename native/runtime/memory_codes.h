// Codes that only the memory functions return, beside those of Code.
#pragma once

#include "runtime/status.h"

namespace descend {

inline constexpr Code kNotSupported{200006};
inline constexpr Code kNoDeviceMemory{207001};
inline constexpr Code kNoPermission{207006};
inline constexpr Code kRegisteredAlready{507910};
inline constexpr Code kNotRegistered{507911};

}  // namespace descend
