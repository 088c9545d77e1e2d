// Settings of the whole process. aclFinalize resets them.
#pragma once

#include <array>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>

#include "acl/acl_op_compiler.h"
#include "capi/state.h"

namespace descend::capi {

using CompileOptions = std::array<std::optional<std::string>, ACL_OP_DEBUG_OPTION + 1>;

struct Settings {
  Options options = kDefaultOptions;
  CompileOptions compile_options;
  int32_t deterministic_collectives = 0;
  std::optional<std::chrono::nanoseconds> wait_limit;  // for a stream that waits for an event

  // Operators are not compiled. torch_npu reads this option, and then calls them by aclnn.
  Settings() { compile_options[ACL_OP_JIT_COMPILE] = "disable"; }
};

struct LockedSettings {
  std::mutex mutex;
  Settings now;
};
LockedSettings& locked_settings();

// Calls use(Settings&) under their lock.
template <class Use>
auto with_settings(Use use) {
  LockedSettings& settings = locked_settings();
  const std::lock_guard lock(settings.mutex);
  return use(settings.now);
}

// Whether an option of a context or of the process exists, and takes the value.
Status check_option(aclSysParamOpt opt);
Status check_option(aclSysParamOpt opt, int64_t value);

void lock_settings();  // for a fork
void unlock_settings();
void forget_settings();  // for aclFinalize

}  // namespace descend::capi
