// Shared by the functions that create, read and destroy opaque objects.
#pragma once

#include "capi/state.h"

namespace descend::capi {

inline constexpr const char* kNotAlive = "is not one that this library created, or has been destroyed already.";

inline Status not_alive(const char* name) { return failure(Code::kParamInvalid, name, " ", kNotAlive); }

inline Status null_parameter(const char* name) {
  return failure(Code::kParamNullptr, name, " is null, but must be given.");
}

// Runs make() -> handle. If it throws, returns null and keeps a sentence.
template <class Handle, class Make>
Handle* create(const char* function, Make make) noexcept {
  void* handle = nullptr;
  (void)boundary(function, [&]() -> Status {
    handle = make();
    return {};
  });
  return static_cast<Handle*>(handle);
}

// For getters: calls use(object) on the object that the handle names. Needs no aclInit.
template <class Table, class Use>
int32_t get(const char* function, const char* name, Table& table, const void* handle, const void* result,
            Use use) noexcept {
  return boundary(function, [&]() -> Status {
    if (handle == nullptr) return null_parameter(name);
    if (result == nullptr) return null_parameter("the result's address");
    return table.with(handle, use) ? Status{} : not_alive(name);
  });
}

template <class Table>
int32_t destroy(const char* function, const char* name, Table& table, const void* handle) noexcept {
  return boundary(function,
                  [&]() -> Status { return handle == nullptr || table.remove(handle) ? Status{} : not_alive(name); });
}

}  // namespace descend::capi
