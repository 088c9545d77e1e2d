// Tensors of device `npu` seen as CPU tensors and back, without copies: the memory of both is host memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>

namespace descend::npu {

// One call's tensors.
class Crossing {
 public:
  // The CPU tensor of the same address, sizes, strides and bits; the same one for the same tensor. Others than those of
  // device npu are returned as they are.
  at::Tensor enter(const at::Tensor& tensor);

  // What the CPU's kernel returned, on `device`: the tensor that an argument was, a view of its storage, or else a
  // tensor of its own, whose memory is taken over where it is `device`'s and no one else's.
  at::Tensor leave(at::Tensor result, c10::Device device);

  // Does to an argument what the CPU's kernel did to sizes, strides and storage of the tensor that stood for it.
  void write_back(const at::Tensor& tensor, c10::Device device);

 private:
  struct Entered {
    at::Tensor npu, cpu;
  };
  struct Shared {
    c10::Storage npu, cpu;
    void* data;  // where the memory was
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

  // Few as a rule; the maps are for calls with lists of hundreds.
  static constexpr size_t kFew = 12;
  c10::SmallVector<Entered, kFew> tensors_;
  c10::SmallVector<Shared, kFew> storages_;
  ska::flat_hash_map<const void*, size_t> tensor_index_, storage_index_;  // by what either side has
};

}  // namespace descend::npu
