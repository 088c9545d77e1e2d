// What the files on opaque objects share.
#pragma once

#include "capi/state.h"

namespace descend::capi {

inline Status not_alive(const char* name) {
  return failure(Code::kParamInvalid, name, " is not one that this library created, or has been destroyed already.");
}

template <class Table>
int32_t destroy(const char* function, const char* name, Table& table, const void* handle) noexcept {
  return boundary(function,
                  [&]() -> Status { return handle == nullptr || table.remove(handle) ? Status{} : not_alive(name); });
}

}  // namespace descend::capi
