// Start and end of the library, and its own settings.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "acl/acl.h"
#include "aclnn/aclnn_base.h"
#include "capi/callback_queue.h"
#include "capi/context.h"
#include "capi/device_table.h"
#include "capi/record.h"
#include "capi/settings.h"
#include "capi/state.h"
#include "descend.h"
#include "kernels/simd/isa.h"
#include "runtime/memory.h"
#include "runtime/parallel.h"
#include "runtime/product.h"
#include "runtime/stream.h"

namespace descend::capi {
namespace {

std::mutex life_mutex;  // aclInit and aclFinalize take turns

// All locks are held across a fork, so that the child finds every table and every executor whole.
void lock_for_fork() {
  life_mutex.lock();
  lock_devices();
  lock_callbacks();
  lock_settings();
  lock_record();
  state().for_each_table([](auto& each) { each.lock(); });
  state().executors.for_each([](auto& executor) { executor->lock_for_fork(); });
}

void unlock_all(void (*unlock_the_callbacks)(), void (*unlock_the_record)()) {
  state().executors.for_each([](auto& executor) { executor->unlock_after_fork(); });
  state().for_each_table([](auto& each) { each.unlock(); });
  unlock_the_record();
  unlock_settings();
  unlock_the_callbacks();
  unlock_devices();
  life_mutex.unlock();
}
[[maybe_unused]] const bool has_fork_handlers = set_fork_handlers({
    lock_for_fork,
    [] { unlock_all(unlock_callbacks, unlock_record); },
    [] { unlock_all(unlock_callbacks_in_child, unlock_record_in_child); },
});

}  // namespace

}  // namespace descend::capi

using namespace descend;
using namespace descend::capi;

aclError aclInit(const char*) {
  return boundary("aclInit", []() -> Status {
    const std::lock_guard lock(life_mutex);
    if (life() == Life::kAlive) return failure(Code::kRepeatInitialize, "it has been called already.");
    set_life(Life::kAlive);
    return {};
  });
}

aclError aclFinalize() {
  return boundary("aclFinalize", []() -> Status {
    const std::lock_guard lock(life_mutex);
    if (life() == Life::kAfter) return failure(Code::kRepeatFinalize, "it has been called already.");
    DESCEND_RETURN_IF_ERROR(require_initialized());
    set_life(Life::kAfter);
    forget_callbacks();  // else streams would wait for callbacks that no thread runs any more
    try {
      wait_for_all_streams();
    } catch (...) {  // waiting needs memory, and there is none: the streams may still work, so nothing is freed
      set_life(Life::kAlive);
      throw;
    }
    State& all = state();
    // All but what torch_npu's queue thread may still have to destroy: where it cannot, it ends the process.
    all.for_each_table([&](auto& table) {
      const void* const which = &table;
      if (which != &all.data_buffers && which != &all.tensor_descs) table.clear();
    });
    forget_devices();
    context_removed();
    forget_settings();
    release_all_allocations();
    trim_pages();
    return {};
  });
}

aclnnStatus aclnnInit(const char*) { return ACLNN_SUCCESS; }
aclnnStatus aclnnFinalize() { return ACLNN_SUCCESS; }

void aclAppLog(aclLogLevel logLevel, const char* func, const char* file, uint32_t line, const char* fmt, ...) {
  static const long least = [] {
    const char* text = std::getenv("ASCEND_GLOBAL_LOG_LEVEL");
    return text == nullptr ? long{ACL_ERROR} : std::strtol(text, nullptr, 10);
  }();
  if (fmt == nullptr || logLevel > ACL_ERROR || static_cast<long>(logLevel) < least) return;
  constexpr const char* kNames[] = {"DEBUG", "INFO", "WARNING", "ERROR"};
  char message[1024];  // a longer one is cut
  va_list arguments;
  va_start(arguments, fmt);
  std::vsnprintf(message, sizeof(message), fmt, arguments);
  va_end(arguments);
  // One call, so that the lines of several threads do not mix.
  std::fprintf(stderr, "[%s] %s:%u %s: %s\n", kNames[logLevel], file ? file : "?", line, func ? func : "?", message);
}

const char* aclrtGetSocName() {
  Product product;
  const int32_t code = boundary("aclrtGetSocName", [&] { return current_product(&product); });
  return code == 0 ? info(product).soc : nullptr;
}

aclError aclrtGetRunMode(aclrtRunMode* runMode) {
  return runtime_call("aclrtGetRunMode", [&]() -> Status {
    if (runMode == nullptr) return null_argument("runMode");
    *runMode = ACL_HOST;
    return {};
  });
}

const char* descendGetVersion() { return DESCEND_VERSION; }

aclError descendSetProduct(const char* name) {
  return boundary("descendSetProduct", [&]() -> Status {
    if (name == nullptr) return null_argument("name");
    return set_product(name);
  });
}

const char* descendGetProduct() {
  Product product;
  const int32_t code = boundary("descendGetProduct", [&] { return current_product(&product); });
  return code == 0 ? info(product).name : "";
}

aclError descendSetNumThreads(int count) {
  return boundary("descendSetNumThreads", [&]() -> Status {
    if (count < 0) {
      return failure(Code::kInvalidParam, "count is ", count, ", but must be at least 1, or 0 for the default.");
    }
    set_num_threads(count);
    return {};
  });
}

int descendGetNumThreads() { return num_threads(); }
const char* descendGetIsa() { return kernels::isa_name(); }
