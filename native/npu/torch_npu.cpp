#include "npu/torch_npu.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/SmallVector.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <vector>

#include "torch/silence.h"

namespace descend::npu {
namespace {

// The layout of NPUStorageImpl in torch_npu's public header, up to the last member that is needed.
struct Description {
  struct Unused {};
  c10::SmallVector<int64_t, 5> base_sizes;
  c10::SmallVector<int64_t, 5> base_strides;
  c10::SmallVector<int64_t, 5> storage_sizes;
  int64_t base_offset;
  Unused base_dtype;
  int32_t origin_format;
  int32_t npu_format;
  caffe2::TypeMeta data_type;
};
struct Storage : c10::StorageImpl {
  Description description;
};

Description& description_of(c10::StorageImpl& storage) { return static_cast<Storage&>(storage).description; }

constexpr int32_t kFormatND = 2;
constexpr size_t kRanks = 9;  // tensors of more dimensions get the formats of the last entry

struct Formats {
  int32_t origin, npu;
};

std::array<Formats, kRanks> formats;
std::atomic<c10::Allocator*> npu_allocator = nullptr;
std::mutex initializing;

const c10::impl::DeviceGuardImplInterface& guard() {
  static const auto* const implementation = c10::impl::getDeviceGuardImpl(kNpu);
  return *implementation;
}

at::Tensor empty_of_torch_npu(c10::IntArrayRef sizes) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("npu::empty_with_format", "");
  torch::jit::Stack stack;
  for (const c10::Argument& argument : op.schema().arguments()) {
    if (argument.name() == "size") {
      stack.emplace_back(sizes);
    } else if (argument.name() == "dtype") {
      stack.emplace_back(static_cast<int64_t>(at::kFloat));
    } else if (argument.name() == "device") {
      stack.emplace_back(c10::Device(kNpu));
    } else if (argument.name() == "acl_format") {
      stack.emplace_back(int64_t{kFormatND});
    } else {
      stack.push_back(argument.default_value().value_or(c10::IValue()));
    }
  }
  op.callBoxed(stack);
  return stack.at(0).toTensor();
}

// Whether the description of a tensor that torch_npu made can be read as this layout.
bool is_understood(const at::Tensor& tensor) {
  const Description& d = description_of(*tensor.storage().unsafeGetStorageImpl());
  return c10::IntArrayRef(d.base_sizes) == tensor.sizes() && c10::IntArrayRef(d.base_strides) == tensor.strides() &&
         c10::IntArrayRef(d.storage_sizes) == tensor.sizes() && d.origin_format >= -1 && d.origin_format < 64 &&
         d.npu_format >= -1 && d.npu_format < 64 && d.data_type == tensor.dtype();
}

// While one lives, new memory is not filled, even under torch.use_deterministic_algorithms. One of our kernels would
// fill it, and that kernel needs what initialize() is about to find out. Several threads may have one at the same time.
class Unfilled {
 public:
  Unfilled() {
    const std::lock_guard lock(mutex_);
    if (alive_++ > 0) return;
    before_ = at::globalContext().deterministicFillUninitializedMemory();
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
  ~Unfilled() {
    const std::lock_guard lock(mutex_);
    if (--alive_ == 0) at::globalContext().setDeterministicFillUninitializedMemory(before_);
  }
  Unfilled(const Unfilled&) = delete;
  Unfilled& operator=(const Unfilled&) = delete;

 private:
  static inline std::mutex mutex_;
  static inline int alive_ = 0;
  static inline bool before_ = false;
};

// In a forked child torch_npu refuses to start. So initialize() must call it again there.
void forget() { npu_allocator = nullptr; }

}  // namespace

bool knows_storages() {
  initialize();
  return npu_allocator != nullptr;
}

void initialize() {
  if (npu_allocator.load(std::memory_order_acquire) != nullptr) return;
  static const int followed = pthread_atfork(nullptr, nullptr, forget);
  (void)followed;
  c10::Allocator* found = nullptr;
  Silence silence;  // torch_npu warns that the format asked for is its default
  const c10::WarningUtils::WarningHandlerGuard quiet(&silence);
  const Unfilled unfilled;
  std::array<Formats, kRanks> seen;  // no lock is held: torch_npu may wait for the GIL
  std::vector<int64_t> sizes;
  for (size_t rank = 1; rank < kRanks; ++rank) {
    sizes.push_back(rank == 1 ? 0 : static_cast<int64_t>(rank));  // no elements: torch_npu reserves no memory for it
    const at::Tensor tensor = empty_of_torch_npu(sizes);
    TORCH_CHECK(
        is_understood(tensor),
        "Descend: torch_npu describes its storages in a way that is not known here. Use the release of torch_npu "
        "that descend[npu] names.");
    const Description& d = description_of(*tensor.storage().unsafeGetStorageImpl());
    seen[rank] = {d.origin_format, d.npu_format};
    found = tensor.storage().allocator();
  }
  seen[0] = seen[1];  // none was made: a tensor without dimensions has an element, so it needs memory
  const std::lock_guard lock(initializing);
  formats = seen;
  npu_allocator.store(found, std::memory_order_release);
}

c10::Allocator* allocator() { return npu_allocator.load(std::memory_order_relaxed); }

c10::Device current_device() { return guard().getDevice(); }

void wait(c10::Device device) {
  const c10::DeviceGuard current(device);  // torch_npu makes the streams of a device only while it is current
  const c10::Stream stream = guard().getStream(device);
  try {
    if (!guard().queryStream(stream)) guard().synchronizeStream(stream);
  } catch (const c10::Error& error) {
    // torch_npu does not wait for a stream that something else made.
    if (!std::strstr(error.what_without_backtrace(), "external NPU stream")) throw;
    guard().synchronizeDevice(device.index());
  }
}

void describe(c10::StorageImpl& storage, caffe2::TypeMeta dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  Description& d = description_of(storage);
  const Formats& format = formats[std::min(sizes.size(), kRanks - 1)];
  d.base_sizes = sizes;
  d.base_strides = strides;
  d.storage_sizes = sizes;
  d.origin_format = format.origin;
  d.npu_format = format.npu;
  d.data_type = dtype;
}

}  // namespace descend::npu
