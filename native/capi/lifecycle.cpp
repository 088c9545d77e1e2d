// Start and end of the library, and its own settings.
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "acl/acl.h"
#include "aclnn/aclnn_base.h"
#include "capi/state.h"
#include "descend.h"
#include "kernels/isa.h"
#include "runtime/memory.h"
#include "runtime/parallel.h"
#include "runtime/product.h"

namespace descend::capi {
namespace {

enum class Life : uint8_t { kBefore, kAlive, kAfter };

std::mutex life_mutex;  // aclInit and aclFinalize take turns
std::atomic<Life> life{Life::kBefore};
std::atomic<bool> refused_in_child{false};

// Of the thread's last failure. An array, for it must outlive every destructor: those of a program's globals and of its
// threads' own may call, and fail, after all others have run. What is longer is cut.
thread_local char recent_sentence[4096];
thread_local aclError recent_code = ACL_SUCCESS;  // 0 again when the thread has asked for it

// What runs when a refused child ends: it goes before all that was registered to run then.
[[maybe_unused]] void end_child(int status, void*) {
  std::fflush(nullptr);
  _exit(status);
}

void keep(const char* function, std::string_view sentence) {
  char* end = recent_sentence;
  char* const limit = recent_sentence + sizeof(recent_sentence) - 1;
  const auto append = [&](std::string_view text) {
    end = std::copy_n(text.data(), std::min(text.size(), static_cast<size_t>(limit - end)), end);
  };
  if (!sentence.starts_with(function)) {
    append(function);
    append(": ");
  }
  append(sentence);
  *end = '\0';
}

// A forked child finds every table and executor whole, whatever other threads were doing.
void lock_for_fork() {
  life_mutex.lock();
  lock_devices();
  lock_reports();
  lock_settings();
  state().for_each_table([](auto& table) { table.lock(); });
  state().executors.for_each([](auto& executor) { executor->lock_for_fork(); });
}

void unlock_all(void (*unlock_subscriptions)()) {
  state().executors.for_each([](auto& executor) { executor->unlock_after_fork(); });
  state().for_each_table([](auto& table) { table.unlock(); });
  unlock_settings();
  unlock_subscriptions();
  unlock_devices();
  life_mutex.unlock();
}
void unlock_in_parent() { unlock_all(unlock_reports); }
void unlock_in_child() { unlock_all(unlock_reports_in_child); }

}  // namespace

State& state() {
  static State* const instance = [] {
    auto* made = new State();  // outlives every thread that may still call
    // After the runtime's, whose locks are the inner ones: handlers before a fork run last in, first out.
    pthread_atfork(lock_for_fork, unlock_in_parent, unlock_in_child);
    return made;
  }();
  return *instance;
}

Status require_no_refusal() {
  if (!refused_in_child.load(std::memory_order_relaxed)) return {};
  return failure(Code::kUninitialize,
                 "this process was forked from one that uses the device, and does not have its threads; start it by "
                 "spawn or forkserver.");
}

Status require_initialized() {
  DESCEND_RETURN_IF_ERROR(require_no_refusal());
  if (life.load(std::memory_order_acquire) == Life::kAlive) return {};
  return failure(Code::kUninitialize,
                 life == Life::kBefore ? "aclInit has not been called." : "aclFinalize has been called.");
}

int32_t report(const char* function, Code code, std::string_view sentence) noexcept {
  keep(function, sentence);
  return recent_code = static_cast<int32_t>(code);
}

}  // namespace descend::capi

using namespace descend;
using namespace descend::capi;

aclError aclInit(const char*) {
  return boundary("aclInit", []() -> Status {
    const std::lock_guard lock(life_mutex);
    if (life == Life::kAlive) return failure(Code::kRepeatInitialize, "it has been called already.");
    life = Life::kAlive;
    return {};
  });
}

aclError aclFinalize() {
  return boundary("aclFinalize", []() -> Status {
    const std::lock_guard lock(life_mutex);
    if (life == Life::kAfter) return failure(Code::kRepeatFinalize, "it has been called already.");
    DESCEND_RETURN_IF_ERROR(require_initialized());
    life = Life::kAfter;
    forget_reports();  // or streams would wait for what nobody calls any more
    try {
      wait_for_all_streams();
    } catch (...) {  // there was no memory to wait with; nothing is freed beneath the work
      life = Life::kAlive;
      throw;
    }
    State& all = state();
    all.for_each_table([](auto& table) { table.clear(); });
    forget_devices();
    forget_settings();
    release_all_allocations();
    trim_pages();
    return {};
  });
}

aclnnStatus aclnnInit(const char*) { return ACLNN_SUCCESS; }
aclnnStatus aclnnFinalize() { return ACLNN_SUCCESS; }

const char* aclGetRecentErrMsg() { return recent_sentence; }

// Of a level that is none nothing is remembered.
aclError aclrtPeekAtLastError(aclrtLastErrLevel level) { return level == ACL_RT_THREAD_LEVEL ? recent_code : 0; }

aclError aclrtGetLastError(aclrtLastErrLevel level) {
  return level == ACL_RT_THREAD_LEVEL ? std::exchange(recent_code, ACL_SUCCESS) : ACL_SUCCESS;
}

void aclAppLog(aclLogLevel logLevel, const char* func, const char* file, uint32_t line, const char* fmt, ...) {
  static const long least = [] {
    const char* text = std::getenv("ASCEND_GLOBAL_LOG_LEVEL");
    return text == nullptr ? long{ACL_ERROR} : std::strtol(text, nullptr, 10);
  }();
  if (fmt == nullptr || logLevel > ACL_ERROR || static_cast<long>(logLevel) < least) return;
  constexpr const char* kNames[] = {"DEBUG", "INFO", "WARNING", "ERROR"};
  char message[1024];  // what is longer is cut
  va_list arguments;
  va_start(arguments, fmt);
  std::vsnprintf(message, sizeof(message), fmt, arguments);
  va_end(arguments);
  // In one call, so that lines of several threads stay whole.
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

int descendRefuseInChild() {
  refused_in_child = life == Life::kAlive;
  if (!refused_in_child) return 0;
#ifdef __GLIBC__
  on_exit(end_child, nullptr);
#endif
  return 1;
}
