#include "npu/crossing.h"

#include <ATen/Functions.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>

#include <cstring>
#include <optional>
#include <utility>

#include "npu/memory.h"

namespace descend::npu {
namespace {

using at::Tensor;

// Keeps a storage alive while another storage uses its memory, such as one that a CPU kernel has kept.
void release(void* storage) { c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl*>(storage)); }

c10::DataPtr borrow(const c10::Storage& storage) {
  auto* const owner = storage.unsafeGetStorageImpl();
  void* const data = owner->mutable_data();
  if (data == nullptr) return {nullptr, c10::kCPU};
  c10::raw::intrusive_ptr::incref(owner);
  return {data, owner, release, c10::kCPU};
}

void copy_bits(const Tensor& from, c10::TensorImpl& to) {
  if (from.is_conj()) to._set_conj(true);
  if (from.is_neg()) to._set_neg(true);
  if (from.unsafeGetTensorImpl()->is_wrapped_number()) to.set_wrapped_number(true);
}

// An inference tensor if `like` is one, whatever the mode: so a view is one if its base is.
Tensor make_tensor(c10::Storage storage, c10::DispatchKey key, const Tensor& like) {
  std::optional<c10::InferenceMode> mode;
  if (like.is_inference() != c10::InferenceMode::is_enabled()) mode.emplace(like.is_inference());
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  auto* const impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  copy_bits(like, *impl);
  return tensor;
}

c10::DataPtr copy_of(const void* data, size_t bytes) {
  c10::DataPtr copy = allocator()->allocate(bytes);
  if (bytes != 0) std::memcpy(copy.get(), data, bytes);
  return copy;
}

at::SparseTensorImpl* coo_of(const Tensor& tensor) {
  return static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
}

at::SparseCsrTensorImpl* compressed_of(const Tensor& tensor) {
  return static_cast<at::SparseCsrTensorImpl*>(tensor.unsafeGetTensorImpl());
}

bool is_sparse(const Tensor& tensor) { return tensor.layout() != at::kStrided; }

}  // namespace

const Crossing::Entered* Crossing::find_cpu(const c10::TensorImpl* cpu) const {
  if (tensors_.size() <= kFew) {
    for (const Entered& each : tensors_) {
      if (each.cpu.unsafeGetTensorImpl() == cpu) return &each;
    }
    return nullptr;
  }
  const auto found = tensor_index_.find(cpu);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

Crossing::Entered* Crossing::find_npu(const c10::TensorImpl* npu) {
  if (tensors_.size() <= kFew) {
    for (Entered& each : tensors_) {
      if (each.npu.unsafeGetTensorImpl() == npu) return &each;
    }
    return nullptr;
  }
  const auto found = tensor_index_.find(npu);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

Crossing::Shared* Crossing::find_cpu(const c10::StorageImpl* cpu) {
  if (storages_.size() <= kFew) {
    for (Shared& each : storages_) {
      if (each.cpu.unsafeGetStorageImpl() == cpu) return &each;
    }
    return nullptr;
  }
  const auto found = storage_index_.find(cpu);
  return found == storage_index_.end() ? nullptr : &storages_[found->second];
}

const Crossing::Shared& Crossing::enter(const c10::Storage& storage) {
  const auto* const key = storage.unsafeGetStorageImpl();
  if (storages_.size() <= kFew) {
    for (const Shared& each : storages_) {
      if (each.npu.unsafeGetStorageImpl() == key) return each;
    }
  } else if (const auto found = storage_index_.find(key); found != storage_index_.end()) {
    return storages_[found->second];
  }
  const size_t bytes = storage.nbytes();
  auto cpu = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, borrow(storage),
                                                   c10::GetCPUAllocator(), storage.resizable());
  storages_.push_back({storage, c10::Storage(std::move(cpu)), storage.unsafeGetStorageImpl()->mutable_data(), bytes});
  if (storages_.size() > kFew) {
    if (storage_index_.empty()) {
      for (size_t i = 0; i < storages_.size(); ++i) {
        storage_index_[storages_[i].npu.unsafeGetStorageImpl()] = i;
        storage_index_[storages_[i].cpu.unsafeGetStorageImpl()] = i;
      }
    }
    storage_index_[key] = storages_.size() - 1;
    storage_index_[storages_.back().cpu.unsafeGetStorageImpl()] = storages_.size() - 1;
  }
  return storages_.back();
}

Tensor Crossing::enter(const Tensor& tensor) {
  if (!tensor.defined() || tensor.device().type() != kNpu) return tensor;
  if (const Entered* known = find_npu(tensor.unsafeGetTensorImpl())) return known->cpu;
  Tensor cpu = is_sparse(tensor) ? enter_sparse(tensor)
                                 : make_tensor(enter(tensor.storage()).cpu, c10::DispatchKey::CPU, tensor);
  tensors_.push_back({tensor, cpu});
  if (tensors_.size() > kFew) {
    const size_t first = tensor_index_.empty() ? 0 : tensors_.size() - 1;
    for (size_t i = first; i < tensors_.size(); ++i) {
      tensor_index_[tensors_[i].npu.unsafeGetTensorImpl()] = i;
      tensor_index_[tensors_[i].cpu.unsafeGetTensorImpl()] = i;
    }
  }
  return cpu;
}

Tensor Crossing::leave(Tensor result, c10::Device device) {
  if (!result.defined() || !result.device().is_cpu()) return result;
  if (const Entered* known = find_cpu(result.unsafeGetTensorImpl())) return known->npu;
  if (is_sparse(result)) return leave_sparse(result, device);
  if (result._is_zerotensor()) return leave(at::zeros(result.sizes(), result.options()), device);  // it has no memory
  auto* const storage = result.storage().unsafeGetStorageImpl();
  if (const Shared* shared = find_cpu(storage)) return make_tensor(shared->npu, c10::DispatchKey::PrivateUse1, result);
  c10::DataPtr data;
  const size_t bytes = storage->nbytes();
  if (result.use_count() == 1 && result.storage().use_count() == 1 && is_npu_memory(storage->data_ptr())) {
    data = storage->set_data_ptr(c10::DataPtr());
  } else {  // the kernel still uses it, or it is not from the device's allocator
    data = copy_of(storage->data(), bytes);
  }
  auto npu =
      make_storage(rename_device(std::move(data), device), bytes, result.dtype(), result.sizes(), result.strides());
  return make_tensor(c10::Storage(std::move(npu)), c10::DispatchKey::PrivateUse1, result);
}

void Crossing::write_back(Shared& shared, const Tensor& tensor) {
  auto* const cpu = shared.cpu.unsafeGetStorageImpl();
  if (cpu->data() == shared.data && cpu->nbytes() == shared.bytes) return;
  auto* const npu = shared.npu.unsafeGetStorageImpl();
  if (cpu->data() != shared.data) {
    c10::DataPtr data = cpu->set_data_ptr(c10::DataPtr());
    if (!is_npu_memory(data)) data = copy_of(data.get(), cpu->nbytes());
    npu->set_data_ptr_noswap(rename_device(std::move(data), shared.npu.device()));
    cpu->set_data_ptr_noswap(borrow(shared.npu));
  }
  npu->set_nbytes(cpu->nbytes());
  describe(*npu, tensor.dtype(), tensor.sizes(), tensor.strides());
  shared.data = npu->mutable_data();
  shared.bytes = npu->nbytes();
}

void Crossing::write_back(const Tensor& tensor, c10::Device device) {
  const Entered* const entered = find_npu(tensor.unsafeGetTensorImpl());
  if (entered == nullptr) return;
  auto* const impl = entered->npu.unsafeGetTensorImpl();
  const Tensor& cpu = entered->cpu;
  if (is_sparse(cpu)) {
    leave_sparse_into(cpu, entered->npu, device);
    return;
  }
  auto* const storage = cpu.storage().unsafeGetStorageImpl();
  if (Shared* shared = find_cpu(storage)) {
    write_back(*shared, cpu);
    if (impl->unsafe_storage().unsafeGetStorageImpl() != shared->npu.unsafeGetStorageImpl()) {
      impl->set_storage_keep_dtype(shared->npu);
    }
  } else {
    Tensor alias = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(cpu.storage()),
                                                            c10::DispatchKeySet(c10::DispatchKey::CPU), cpu.dtype());
    alias.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides(), cpu.storage_offset());
    impl->set_storage_keep_dtype(leave(std::move(alias), device).storage());
  }
  if (cpu.is_conj() != entered->npu.is_conj()) impl->_set_conj(cpu.is_conj());
  if (cpu.is_neg() != entered->npu.is_neg()) impl->_set_neg(cpu.is_neg());
  if (cpu.sizes() != impl->sizes() || cpu.strides() != impl->strides() ||
      cpu.storage_offset() != impl->storage_offset()) {
    impl->set_sizes_and_strides(cpu.sizes(), cpu.strides(), cpu.storage_offset());
  }
}

Tensor Crossing::enter_sparse(const Tensor& tensor) {
  if (tensor.layout() == at::kSparse) {
    const auto* const impl = coo_of(tensor);
    return at::_sparse_coo_tensor_unsafe(enter(impl->indices()), enter(impl->values()), tensor.sizes(), std::nullopt,
                                         std::nullopt, std::nullopt, std::nullopt, impl->coalesced());
  }
  TORCH_CHECK_NOT_IMPLEMENTED(at::sparse_csr::is_sparse_compressed(tensor), "Descend: tensors of layout ",
                              tensor.layout(), " are not known on device npu.");
  const auto* const impl = compressed_of(tensor);
  return at::_sparse_compressed_tensor_unsafe(enter(impl->compressed_indices()), enter(impl->plain_indices()),
                                              enter(impl->values()), tensor.sizes(),
                                              tensor.options().device(c10::kCPU));
}

Tensor Crossing::leave_sparse(const Tensor& result, c10::Device device) {
  if (result.layout() == at::kSparse) {
    const auto* const impl = coo_of(result);
    return at::_sparse_coo_tensor_unsafe(leave(impl->indices(), device), leave(impl->values(), device), result.sizes(),
                                         std::nullopt, std::nullopt, std::nullopt, std::nullopt, impl->coalesced());
  }
  TORCH_CHECK_NOT_IMPLEMENTED(at::sparse_csr::is_sparse_compressed(result), "Descend: tensors of layout ",
                              result.layout(), " are not known on device npu.");
  const auto* const impl = compressed_of(result);
  return at::_sparse_compressed_tensor_unsafe(leave(impl->compressed_indices(), device),
                                              leave(impl->plain_indices(), device), leave(impl->values(), device),
                                              result.sizes(), result.options().device(device));
}

void Crossing::leave_sparse_into(const Tensor& cpu, const Tensor& npu, c10::Device device) {
  if (cpu.layout() == at::kSparse) {
    const auto* const from = coo_of(cpu);
    auto* const to = coo_of(npu);
    const Tensor indices = leave(from->indices(), device), values = leave(from->values(), device);
    to->raw_resize_(from->sparse_dim(), from->dense_dim(), cpu.sizes());
    to->set_indices_and_values_unsafe(indices, values);
    to->set_coalesced(from->coalesced());
  } else {
    const auto* const from = compressed_of(cpu);
    compressed_of(npu)->set_member_tensors(leave(from->compressed_indices(), device),
                                           leave(from->plain_indices(), device), leave(from->values(), device),
                                           cpu.sizes());
  }
}

}  // namespace descend::npu
