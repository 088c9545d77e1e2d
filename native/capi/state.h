// The state behind the C interface, and the boundary that no exception crosses.
#pragma once

#include <memory>
#include <new>
#include <string>

#include "capi/handles.h"
#include "operators/executor.h"
#include "runtime/status.h"
#include "runtime/stream.h"
#include "tensor/tensor.h"

namespace descend::capi {

struct State {
  HandleTable<Tensor> tensors{0xA1};
  HandleTable<Dims> int_arrays{0xA2};
  HandleTable<Dims> bool_arrays{0xA3};
  HandleTable<std::shared_ptr<Executor>> executors{0xA4};
  HandleTable<std::shared_ptr<Stream>> streams{0xA5};
};
State& state();

Status require_initialized();

// The stream that a handle names; null means the device's default stream. Empty where there is none.
std::shared_ptr<Stream> find_stream(const void* handle);

// Keeps the sentence for aclGetRecentErrMsg and returns the number.
int32_t report(const char* function, const Status& status) noexcept;

// Runs body() -> Status and turns its failure, or whatever it throws, into a number and a sentence. `function` is put
// before the sentence where it does not name its subject itself.
template <class Body>
int32_t boundary(const char* function, Body body, Code no_memory = Code::kBadAlloc,
                 Code unexpected = Code::kInternalError) noexcept {
  try {
    const Status status = body();
    return status.ok() ? 0 : report(function, status);
  } catch (const std::bad_alloc&) {
    return report(function, Status{no_memory, "there is no memory."});
  } catch (const std::exception& error) {
    return report(function, Status{unexpected, error.what()});
  } catch (...) {
    return report(function, Status{unexpected, "an unknown failure."});
  }
}

// The same for runtime calls, which need aclInit first.
template <class Body>
int32_t runtime_call(const char* function, Body body) noexcept {
  return boundary(function, [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(require_initialized());
    return body();
  });
}

}  // namespace descend::capi
