// Memory of device `npu`. torch_npu's caching allocator owns it, and with Descend's runtime below it is host memory.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/typeid.h>

#include "npu/torch_npu.h"

namespace descend::npu {

// From here on CPU kernels may be lent memory of device npu. To be called once, before any kernel runs.
void install_allocator();

// While it lives, tensors that this thread makes on the CPU lie in memory of `device`.
class AllocateOn {
 public:
  explicit AllocateOn(c10::Device device);
  ~AllocateOn();
  AllocateOn(const AllocateOn&) = delete;
  AllocateOn& operator=(const AllocateOn&) = delete;

 private:
  c10::Allocator* before_;
  c10::Device current_;  // the device to go back to; an index below 0 where it is the one asked for
};

// Whether a CPU tensor's memory came from device npu's allocator.
bool is_npu_memory(const c10::DataPtr& data);

// The same memory, owned by what owned it before, as memory of another device.
c10::DataPtr rename_device(c10::DataPtr data, c10::Device device);

// A storage of torch_npu's own class, described as torch_npu describes a tensor of these sizes and strides.
c10::intrusive_ptr<c10::StorageImpl> make_storage(c10::DataPtr data, size_t bytes, caffe2::TypeMeta dtype,
                                                  c10::IntArrayRef sizes, c10::IntArrayRef strides);

}  // namespace descend::npu
