#include "capi/composed.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "capi/capture.h"
#include "capi/objects.h"
#include "capi/operator_call.h"
#include "descend_composer.h"

namespace descend::capi {
namespace {

std::atomic<descendComposer> composer{nullptr};
std::atomic<int (*)()> holds_lock{nullptr};
std::atomic<int> in_flight{0};       // calls of the composer
thread_local int in_flight_here{0};  // those of this thread

constexpr size_t kLongestText = 64;  // an invalid string may have no end

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += static_cast<unsigned char>(c) < ' ' || static_cast<unsigned char>(c) > '~' ? '?' : c;
  }
  return result + '"';
}

std::string wrong(std::string_view reason) { return concat("{\"wrong\": ", quoted(reason), "}"); }

std::string listed(const Dims& numbers) {
  std::string result = "[";
  for (const int64_t number : numbers) result += concat(result.size() > 1 ? ", " : "", number);
  return result + "]";
}

std::string described(const Tensor& tensor) {
  if (const Status status = check_layout(tensor); !status.ok()) return wrong(status.sentence);
  if (!is_public(tensor.format)) {
    return wrong(concat("has format ", format_name(tensor.format), ", but must have one without padding."));
  }
  const char* first = static_cast<const char*>(tensor.data);
  if (first != nullptr) first += tensor.offset * dtype_size(tensor.dtype);
  return concat("{\"dtype\": ", quoted(dtype_name(tensor.dtype)), ", \"shape\": ", listed(tensor.shape),
                ", \"strides\": ", listed(tensor.strides), ", \"data\": ", reinterpret_cast<uintptr_t>(first),
                self_overlap(tensor) == SelfOverlap::kNo ? "}" : ", \"overlaps\": true}");
}

// One call of the composer.
class Flight {
 public:
  Flight() {
    ++in_flight;
    ++in_flight_here;
  }
  ~Flight() {
    --in_flight_here;
    --in_flight;
  }
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;
};

Status compose(const std::string& function, int phase, const std::string& arguments) {
  const Flight flight;  // first, so that descendSetComposer waits for what is found here
  const descendComposer found = composer;
  if (found == nullptr) {
    return failure(Code::kFindKernelError, "PyTorch computes this function. It is there under torch_npu only.");
  }
  const std::string call =
      concat("{\"function\": ", quoted(function), ", \"phase\": ", phase, ", \"arguments\": [", arguments, "]}");
  Status answer = failure(Code::kRuntimeError, "the call was interrupted.");
  const auto say = [](void* to, int32_t status, const char* sentence) {
    *static_cast<Status*>(to) = {Code{status}, status == 0 ? "" : sentence};
  };
  found(call.c_str(), &answer, say);
  return answer;
}

// Whether the caller holds the lock that the composer takes. Under torch_npu that is Python's, and the caller an
// extension.
bool caller_holds_lock() {
  const auto check = holds_lock.load();
  return check != nullptr && check() != 0;
}

}  // namespace

void CallText::next() {
  if (!text_.empty()) text_ += ", ";
}

void CallText::add_tensor(const aclTensor* handle) {
  if (handle == nullptr) {
    text_ += "null";
    return;
  }
  const auto tensor = state().tensors.find(handle);
  text_ += tensor ? described(*tensor) : wrong(kNotAlive);
}

void CallText::add(const aclTensor* handle) {
  next();
  add_tensor(handle);
}

void CallText::add(const aclTensorList* handle) {
  next();
  if (handle == nullptr) {
    text_ += "null";
  } else if (const auto list = state().tensor_lists.find(handle)) {
    text_ += "[";
    for (size_t i = 0; i < list->size(); ++i) {
      if (i > 0) text_ += ", ";
      add_tensor((*list)[i]);
    }
    text_ += "]";
  } else {
    text_ += wrong(kNotAlive);
  }
}

void CallText::add(const aclIntArray* handle) {
  next();
  const auto numbers = handle == nullptr ? std::nullopt : state().int_arrays.find(handle);
  text_ += handle == nullptr ? "null" : numbers ? listed(*numbers) : wrong(kNotAlive);
}

void CallText::add(const char* text) {
  next();
  text_ += text == nullptr ? "null" : quoted({text, strnlen(text, kLongestText)});
}

void CallText::add(int64_t number) {
  next();
  text_ += std::to_string(number);
}

void CallText::add(double number) {
  next();
  text_ += std::isnan(number)   ? "NaN"
           : std::isinf(number) ? (number > 0 ? "Infinity" : "-Infinity")
                                : in_digits(number, 17);
}

void CallText::add(bool flag) {
  next();
  text_ += flag ? "true" : "false";
}

Status plan_composed_text(const char* function, std::string arguments, uint64_t* workspace_size,
                          aclOpExecutor** executor) {
  remember_call({});
  if (workspace_size == nullptr) return null_parameter("workspaceSize");
  if (executor == nullptr) return null_parameter("executor");
  if (Status status = require_no_refusal(); !status.ok()) return {Code::kRuntimeError, status.sentence};
  DESCEND_RETURN_IF_ERROR(require_no_capture());
  // An extension of torch_npu must not be computed in phase 2. With its queue torch_npu may wait for phase 2 with the
  // lock held, and phase 2 would wait for the lock for ever. Without the queue torch_npu gives the lock away for phase
  // 2, and does not take it back after an error: the process would end.
  const bool at_once = caller_holds_lock();
  DESCEND_RETURN_IF_ERROR(compose(function, at_once ? 3 : 1, arguments));
  auto call = std::make_shared<ComposedCall>(function, std::move(arguments));
  call->computed = at_once;
  *executor = static_cast<aclOpExecutor*>(state().composed.insert(std::move(call)));
  *workspace_size = 0;
  return {};
}

aclnnStatus launch_composed(const char* function, void*, uint64_t, aclOpExecutor* executor,
                            aclrtStream stream) noexcept {
  return boundary(
      function,
      [&]() -> Status {
        if (executor == nullptr) return null_parameter("executor");
        const auto found = state().composed.find(executor);
        if (!found || (*found)->function != function) {
          return failure(Code::kParamInvalid, "executor has been used or destroyed already, or is not one for this ",
                         "function.");
        }
        if (const Status status = require_initialized(); !status.ok()) return {Code::kRuntimeError, status.sentence};
        const auto on = find_device_stream(stream);
        if (!on) return failure(Code::kRuntimeError, "stream is not one, or has been destroyed already.");
        if (!(*found)->computed.exchange(false)) {
          on->drain();
          DESCEND_RETURN_IF_ERROR(compose((*found)->function, 2, (*found)->arguments));
        }
        if (!(*found)->repeatable) state().composed.remove(executor);
        return {};
      },
      Code::kRuntimeError, Code::kInner);
}

}  // namespace descend::capi

void descendSetComposer(descendComposer given, int (*holds)()) {
  using namespace descend::capi;
  holds_lock = holds;
  composer = given;
  // There is no event to wait for: this happens once, when a process ends, and seldom has a call to wait for.
  while (in_flight > in_flight_here && require_no_refusal().ok()) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}
