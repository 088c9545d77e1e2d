// Turns tensors of device `npu` into CPU tensors and back, without copies: the memory of both is host memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>

namespace descend::npu {

// The tensors of one operator call.
class Crossing {
 public:
  // A CPU tensor with the same address, sizes, strides and flags. The same argument gives the same CPU tensor. A tensor
  // that is not on device npu is returned as it is.
  at::Tensor enter(const at::Tensor& tensor);

  // The tensor on `device` for a result of the CPU kernel. If the result is an argument, it is that argument's tensor;
  // if it is a view of an argument, a view of that storage. Otherwise it is a new tensor. It takes over the result's
  // memory without a copy if that came from `device`'s allocator and nothing else uses it.
  at::Tensor leave(at::Tensor result, c10::Device device);

  // Copies sizes, strides and storage, which the CPU kernel may have changed, from the CPU tensor to the argument.
  void write_back(const at::Tensor& tensor, c10::Device device);

 private:
  struct Entered {
    at::Tensor npu, cpu;
  };
  struct Shared {
    c10::Storage npu, cpu;
    void* data;  // the address before the call
    size_t bytes;
  };

  const Shared& enter(const c10::Storage& storage);
  void write_back(Shared& storage, const at::Tensor& tensor);
  const Entered* find_cpu(const c10::TensorImpl* cpu) const;
  Entered* find_npu(const c10::TensorImpl* npu);
  Shared* find_cpu(const c10::StorageImpl* cpu);
  at::Tensor enter_sparse(const at::Tensor& tensor);
  at::Tensor leave_sparse(const at::Tensor& result, c10::Device device);
  void leave_sparse_into(const at::Tensor& cpu, const at::Tensor& npu, c10::Device device);

  // Most calls have few tensors. The maps are for calls with lists of hundreds.
  static constexpr size_t kFew = 12;
  c10::SmallVector<Entered, kFew> tensors_;
  c10::SmallVector<Shared, kFew> storages_;
  ska::flat_hash_map<const void*, size_t> tensor_index_, storage_index_;  // by the address of either side's object
};

}  // namespace descend::npu
