// The objects behind the handles of the C interface: a table for each kind.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aclnn/acl_meta.h"
#include "capi/attributes.h"
#include "capi/boundary.h"
#include "capi/handles.h"
#include "operators/executor.h"
#include "runtime/virtual_memory.h"
#include "tensor/tensor.h"

namespace descend::capi {

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

// The options of a context or of the process, by aclSysParamOpt.
using Options = std::array<int64_t, 3>;
inline constexpr Options kDefaultOptions{1, 0, 1};  // deterministic; no debug kernels; strongly consistent

struct Context {
  int32_t device = 0;
  Options options = kDefaultOptions;
};

// A call of a function that another library computes, between its phases; composed.h.
struct ComposedCall {
  const std::string function;
  const std::string arguments;  // in JSON
  std::atomic<bool> repeatable = false;
  std::atomic<bool> computed = false;  // in phase 1, so that the next launch has nothing to do
};

struct DeviceStream;  // device_stream.h
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
  HandleTable<std::shared_ptr<ComposedCall>> composed{0xB4};
  HandleTable<std::shared_ptr<PhysicalMemory>> physical{0xB8};

  template <class Use>
  void for_each_table(Use use) {
    const auto each = [&](auto&... tables) { (use(tables), ...); };
    each(tensors, int_arrays, bool_arrays, executors, streams, events, contexts, float_arrays, scalars, tensor_lists,
         scalar_lists, data_buffers, tensor_descs, attributes, composed, physical);
  }
};
State& state();

// The locks of the C interface at a fork of the process: `before` takes them, the others release them.
struct ForkHandlers {
  void (*before)();
  void (*in_parent)();
  void (*in_child)();
};
// To be called before the first call of state(), which registers them.
bool set_fork_handlers(const ForkHandlers& handlers);

}  // namespace descend::capi
