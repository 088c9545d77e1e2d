// The parts of torch_npu's internals that are used here: its allocator, its streams, its description of each storage.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/typeid.h>

namespace descend::npu {

constexpr c10::DeviceType kNpu = c10::DeviceType::PrivateUse1;

// Starts the device if it has not been started, and finds torch_npu's allocator. Throws if torch_npu's storages do not
// have the expected layout.
void initialize();

// Whether a storage's description can be read and written: torch_npu's class must have the layout of the known
// releases.
bool knows_storages();

// torch_npu's caching allocator, after initialize().
c10::Allocator* allocator();

c10::Device current_device();

// Waits for the work in torch_npu's task queue and on the current stream of `device`. Cheap if there is none.
void wait(c10::Device device);

// Writes a storage's description, as torch_npu does for a new tensor of these sizes and strides.
void describe(c10::StorageImpl& storage, caffe2::TypeMeta dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides);

}  // namespace descend::npu
