#include "npu/memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace descend::npu {
namespace {

// Allocates this thread's CPU tensors; null: PyTorch's CPU allocator does.
thread_local c10::Allocator* thread_allocator = nullptr;

// Replaces PyTorch's CPU allocator. Passes requests to the thread's allocator if there is one, else to the replaced
// one.
class SwitchingAllocator final : public c10::Allocator {
 public:
  explicit SwitchingAllocator(c10::Allocator* cpu) : cpu_(cpu) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (thread_allocator == nullptr) return cpu_->allocate(bytes);
    return rename_device(thread_allocator->allocate(bytes), c10::kCPU);
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return thread_allocator == nullptr ? cpu_->raw_deleter() : thread_allocator->raw_deleter();
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { cpu_->copy_data(to, from, bytes); }

 private:
  c10::Allocator* cpu_;
};

}  // namespace

void install_allocator() {
  constexpr uint8_t kAboveAll = 255;
  static SwitchingAllocator allocator(c10::GetCPUAllocator());
  c10::SetCPUAllocator(&allocator, kAboveAll);
}

AllocateOn::AllocateOn(c10::Device device) : before_(thread_allocator), current_(device.type(), -1) {
  initialize();
  const auto* guard = c10::impl::getDeviceGuardImpl(kNpu);
  if (device.has_index() && guard->deviceCount() > 1) {
    const c10::Device current = guard->exchangeDevice(device);
    if (current != device) current_ = current;
  }
  thread_allocator = allocator();
}

AllocateOn::~AllocateOn() {
  thread_allocator = before_;
  if (current_.has_index()) c10::impl::getDeviceGuardImpl(kNpu)->uncheckedSetDevice(current_);
}

bool is_npu_memory(const c10::DataPtr& data) {
  return data.get() == nullptr || data.get_deleter() == allocator()->raw_deleter();
}

c10::DataPtr rename_device(c10::DataPtr data, c10::Device device) {
  void* const address = data.get();
  const c10::DeleterFnPtr deleter = data.get_deleter();
  return {address, data.release_context(), deleter, device};
}

c10::intrusive_ptr<c10::StorageImpl> make_storage(c10::DataPtr data, size_t bytes, caffe2::TypeMeta dtype,
                                                  c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  static const c10::StorageImplCreateHelper create = c10::GetStorageImplCreate(kNpu);
  auto storage = create(c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(bytes), std::move(data), allocator(),
                        /*resizable=*/true);
  describe(*storage, dtype, sizes, strides);
  return storage;
}

}  // namespace descend::npu
