#include "npu/collectives.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "npu/kernel.h"
#include "npu/registration.h"

namespace descend::npu {
namespace {

using at::Tensor;
using c10::IValue;

// Divides a tensor, or every tensor of a list (of lists), in place or into new tensors.
IValue divided(const IValue& value, int64_t count, bool in_place) {
  const auto divide = [&](Tensor tensor) { return in_place ? tensor.div_(count) : tensor.div(count); };
  if (value.isTensor()) return divide(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& tensor : value.toTensorVector()) list.push_back(divide(tensor));
    return list;
  }
  auto lists = value.toList();
  c10::impl::GenericList all(lists.elementType());
  for (size_t i = 0; i < lists.size(); ++i) all.push_back(divided(lists.get(i), count, in_place));
  return all;
}

// A collective that reduces. CPU backends have no average: the inputs are divided first, and then summed.
class Reduction : public CpuKernel {
 public:
  explicit Reduction(const c10::OperatorHandle& op) : CpuKernel(op) {
    const auto& arguments = op.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      const std::string& name = arguments[i].name();
      if (name == "reduce_op") op_ = i;
      if (name == "process_group") group_ = i;
      if (name == "input_tensors" || name == "input_tensor" || name == "inputs") input_ = i;
    }
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const size_t first = stack->size() - op.schema().arguments().size();
    IValue& reduce = (*stack)[first + op_];
    if (reduce.toCustomClass<c10d::ReduceOp>()->op_ == c10d::ReduceOp::AVG) {
      const auto group = (*stack)[first + group_].toCustomClass<c10d::ProcessGroup>();
      IValue& input = (*stack)[first + input_];
      input = divided(input, group->getSize(), input_ == 0);
      reduce = c10::make_intrusive<c10d::ReduceOp>(c10d::ReduceOp::SUM);
    }
    CpuKernel::operator()(op, keys, stack);
  }

 private:
  size_t op_ = 0, group_ = 0;
  size_t input_ = 0;  // 0: the tensors are reduced in place
};

// PyTorch's gloo cuts the result along its first dimension. HCCL fills memory of any shape, so it is given as a row.
class Gathering : public CpuKernel {
 public:
  using CpuKernel::CpuKernel;
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    IValue* const arguments = &*(stack->end() - static_cast<int64_t>(op.schema().arguments().size()));
    const Tensor output = arguments[0].toTensor();
    if (output.is_contiguous()) {
      arguments[0] = output.flatten();
      arguments[1] = arguments[1].toTensor().flatten();
    }
    CpuKernel::operator()(op, keys, stack);
    (*stack)[stack->size() - op.schema().returns().size()] = output;
  }
};

template <class Kernel>
void replace(const char* name) {
  const auto op = find_operator(std::string("c10d::") + name);
  implement(op, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(op)));
}

}  // namespace

void register_collectives() {
  for (const char* name :
       {"allgather_", "allgather_coalesced_", "allgather_into_tensor_coalesced_", "alltoall_", "alltoall_base_",
        "barrier", "broadcast_", "gather_", "monitored_barrier_", "recv_", "recv_any_source_", "scatter_", "send"}) {
    serve(std::string("c10d::") + name);
  }
  for (const char* name : {"allreduce_", "allreduce_coalesced_", "reduce_", "reduce_scatter_", "_reduce_scatter_base_",
                           "reduce_scatter_tensor_coalesced_"}) {
    replace<Reduction>(name);
  }
  replace<Gathering>("_allgather_base_");
}

}  // namespace descend::npu
