// What is known of torch_npu's insides: its allocator, its streams, and what it notes down for each storage.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/typeid.h>

namespace descend::npu {

constexpr c10::DeviceType kNpu = c10::DeviceType::PrivateUse1;

// Starts the device where that has not been done, and finds torch_npu's allocator. Throws where torch_npu's storages do
// not look as they are expected to.
void initialize();

// Whether a storage's description can be read and written: torch_npu's class has to look as it does in the releases
// that are known.
bool knows_storages();

// torch_npu's caching allocator, after initialize().
c10::Allocator* allocator();

c10::Device current_device();

// Waits for what is in torch_npu's queue and on the current stream of `device`. Cheap where there is nothing.
void wait(c10::Device device);

// Writes down, as torch_npu does, that a storage was made for a tensor of these sizes and strides.
void describe(c10::StorageImpl& storage, caffe2::TypeMeta dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides);

}  // namespace descend::npu
