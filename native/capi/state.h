// The state behind the C interface, and the boundary that no exception crosses.
#pragma once

#include <array>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aclnn/acl_meta.h"
#include "capi/attributes.h"
#include "capi/handles.h"
#include "operators/executor.h"
#include "runtime/status.h"
#include "runtime/stream.h"
#include "runtime/virtual_memory.h"
#include "tensor/tensor.h"

namespace descend::capi {

// Codes of the C interface alone, beside those of Code.
inline constexpr Code kInvalidFile{100003};
inline constexpr Code kOpInputNotMatch{100021};
inline constexpr Code kOpOutputNotMatch{100022};
inline constexpr Code kOpAttributeNotMatch{100023};
inline constexpr Code kOpNotFound{100024};
inline constexpr Code kContextNull{107002};
inline constexpr Code kFeatureUnsupported{200006};  // and not 207000, with which torch_npu goes on as if all were well
inline constexpr Code kContextRelease{507007};

struct Scalar {
  Dtype dtype = Dtype::kUndefined;
  std::array<char, 16> value{};
};

struct DataBuffer {
  void* data = nullptr;
  size_t size = 0;
};

struct TensorDesc {
  aclDataType dtype = ACL_DT_UNDEFINED;
  aclFormat format = ACL_FORMAT_UNDEFINED;
  Dims shape;
  std::string name = {};
  std::optional<aclFormat> storage_format = {};
  std::optional<Dims> storage_shape = {};
  aclMemType placement = ACL_MEMTYPE_DEVICE;
  std::optional<DataBuffer> constant = {};
};

// Options by number, as aclSysParamOpt counts them.
using Options = std::array<int64_t, 3>;
inline constexpr Options kDefaultOptions{1, 0, 1};  // deterministic; no debug kernels; strongly consistent

struct Context {
  int32_t device = 0;
  Options options = kDefaultOptions;
};

struct DeviceStream;  // device.h
struct ProgramEvent;  // event.h

struct State {
  HandleTable<Tensor> tensors{0xA1};
  HandleTable<Dims> int_arrays{0xA2};
  HandleTable<Dims> bool_arrays{0xA3};
  HandleTable<std::shared_ptr<Executor>> executors{0xA4};
  HandleTable<std::shared_ptr<DeviceStream>> streams{0xA5};
  HandleTable<std::shared_ptr<ProgramEvent>> events{0xA6};
  HandleTable<Context> contexts{0xA7};
  HandleTable<std::vector<float>> float_arrays{0xA8};
  HandleTable<Scalar> scalars{0xA9};
  HandleTable<std::vector<const aclTensor*>> tensor_lists{0xAA};
  HandleTable<std::vector<const aclScalar*>> scalar_lists{0xAB};
  HandleTable<DataBuffer> data_buffers{0xAC};
  HandleTable<TensorDesc> tensor_descs{0xAD};
  HandleTable<Attributes> attributes{0xB0};
  HandleTable<std::shared_ptr<PhysicalMemory>> physical{0xB8};

  template <class Use>
  void for_each_table(Use use) {
    const auto each = [&](auto&... tables) { (use(tables), ...); };
    each(tensors, int_arrays, bool_arrays, executors, streams, events, contexts, float_arrays, scalars, tensor_lists,
         scalar_lists, data_buffers, tensor_descs, attributes, physical);
  }
};
State& state();

Status require_initialized();

// A failure in a child in which descendRefuseInChild has been called.
Status require_no_refusal();

// The stream that a handle names; null means the device's default stream. Empty where there is none.
std::shared_ptr<Stream> find_stream(const void* handle);

// The same, or a failure with ACL_ERROR_INVALID_RESOURCE_HANDLE.
Status get_stream(const void* handle, std::shared_ptr<Stream>* stream);

// For aclFinalize.
void forget_devices();
void forget_settings();
void forget_reports();  // while streams may be at work

// For a fork.
void lock_devices();
void unlock_devices();
void lock_reports();
void unlock_reports();
void unlock_reports_in_child();
void lock_settings();
void unlock_settings();

// An option of a context or of the process, and a value for it.
Status check_option(aclSysParamOpt opt);
Status check_option(aclSysParamOpt opt, int64_t value);

inline Status null_argument(const char* name) {
  return failure(Code::kInvalidParam, name, " is null, but must be given.");
}

// Keeps the sentence for aclGetRecentErrMsg and returns the number. Allocates nothing: it also tells that there is no
// memory.
int32_t report(const char* function, Code code, std::string_view sentence) noexcept;
inline int32_t report(const char* function, const Status& status) noexcept {
  return report(function, status.code, status.sentence);
}

// Runs body() -> Status and turns its failure, or whatever it throws, into a number and a sentence. `function` is put
// before a sentence that does not begin with it.
template <class Body>
int32_t boundary(const char* function, Body body, Code no_memory = Code::kBadAlloc,
                 Code unexpected = Code::kInternalError) noexcept {
  try {
    const Status status = body();
    return status.ok() ? 0 : report(function, status);
  } catch (const std::bad_alloc&) {
    return report(function, no_memory, "there is no memory.");
  } catch (const std::exception& error) {
    return report(function, unexpected, error.what());
  } catch (...) {
    return report(function, unexpected, "an unknown failure.");
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
