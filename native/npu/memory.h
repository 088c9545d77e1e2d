// Memory of device `npu`. torch_npu's caching allocator owns it, and with Descend's runtime below it is host memory.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/typeid.h>

#include "npu/torch_npu.h"

namespace descend::npu {

// Replaces PyTorch's CPU allocator with one that AllocateOn can direct to a device. Call it once, before any kernel
// runs.
void install_allocator();

// While such an object lives, CPU tensors that this thread makes get memory from the allocator of `device`.
class AllocateOn {
 public:
  explicit AllocateOn(c10::Device device);
  ~AllocateOn();
  AllocateOn(const AllocateOn&) = delete;
  AllocateOn& operator=(const AllocateOn&) = delete;

 private:
  c10::Allocator* before_;
  c10::Device current_;  // the device to return to; its index is below 0 if the device did not change
};

// Whether memory came from device npu's allocator.
bool is_npu_memory(const c10::DataPtr& data);

// The same memory with the same owner, marked as memory of another device.
c10::DataPtr rename_device(c10::DataPtr data, c10::Device device);

// A storage of torch_npu's own class, described as torch_npu describes a tensor of these sizes and strides.
c10::intrusive_ptr<c10::StorageImpl> make_storage(c10::DataPtr data, size_t bytes, caffe2::TypeMeta dtype,
                                                  c10::IntArrayRef sizes, c10::IntArrayRef strides);

}  // namespace descend::npu
