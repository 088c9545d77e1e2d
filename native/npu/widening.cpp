#include "npu/widening.h"

#include <ATen/ATen.h>
#include <ATen/core/List.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace descend::npu {
namespace {

using at::Tensor;
using c10::IValue;

// Parts of the errors that PyTorch's kernels raise for a dtype that they do not have.
constexpr std::array<std::string_view, 4> kRefusals = {
    "not implemented for 'Half'",
    "not implemented for 'BFloat16'",
    "Low precision dtypes not supported",
    "Unsupported datatype for add_relu",
};

// Parts of the errors that they raise for indices or classes that are not int64.
constexpr std::array<std::string_view, 4> kRefusalsOfIndices = {
    "Expected dtype int64 for index",
    "Expected a long tensor for index",
    "expected scalar type Long but found Int",
    "expected target dtype to be Long or Byte, but got Int",
};

// Parts of the errors that products of matrices raise for operands of unlike dtypes.
constexpr std::array<std::string_view, 6> kRefusalsOfMixtures = {
    "to have the same dtype",
    "must have the same dtype",
    "Input dtypes must be the same",
    "expected scalar type Float but found",
    "expected scalar type BFloat16 but found",
    "expected scalar type Half but found",
};

template <size_t N>
bool says_one_of(const std::array<std::string_view, N>& refusals, const c10::Error& error) {
  const std::string_view words = error.what_without_backtrace();
  return std::any_of(refusals.begin(), refusals.end(),
                     [&](std::string_view refusal) { return words.find(refusal) != std::string_view::npos; });
}

bool is_int32(const IValue& value) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().scalar_type() == at::kInt;
}

bool is_narrow(const Tensor& tensor) {
  return tensor.defined() && (tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16);
}

// The narrow dtype among the arguments, if there is one.
std::optional<at::ScalarType> narrow_of(c10::ArrayRef<IValue> arguments) {
  for (const IValue& value : arguments) {
    if (value.isTensor() && is_narrow(value.toTensor())) return value.toTensor().scalar_type();
    if (!value.isTensorList()) continue;
    for (const IValue& element : value.toListRef()) {  // not copied: an optimiser's call has hundreds
      if (is_narrow(element.toTensor())) return element.toTensor().scalar_type();
    }
  }
  return std::nullopt;
}

bool float16_alone(c10::ArrayRef<IValue> arguments) {
  return std::none_of(arguments.begin(), arguments.end(), [](const IValue& value) {
    if (!value.isTensor() || !value.toTensor().defined()) return false;
    const at::ScalarType type = value.toTensor().scalar_type();
    return type != at::kHalf && (at::isFloatingType(type) || at::isComplexType(type));
  });
}

bool float32_at_most(c10::ArrayRef<IValue> arguments) {
  return std::all_of(arguments.begin(), arguments.end(), [](const IValue& value) {
    if (!value.isTensor() || !value.toTensor().defined()) return true;
    return is_narrow(value.toTensor()) || value.toTensor().scalar_type() == at::kFloat;
  });
}

Tensor widened(const Tensor& tensor) { return is_narrow(tensor) ? tensor.to(at::kFloat) : tensor; }

IValue widened(const IValue& value) {
  if (value.isTensor()) return widened(value.toTensor());
  if (!value.isTensorList()) return value;
  c10::List<Tensor> wide;
  for (const Tensor& tensor : value.toTensorVector()) wide.push_back(widened(tensor));
  return wide;
}

// Takes the float32 tensors after a call. A tensor that was widened is copied back to the argument; a new one is
// rounded.
class Narrowing {
 public:
  explicit Narrowing(at::ScalarType narrow) : narrow_(narrow) {}

  void write_back(const Tensor& given, const Tensor& wide) {
    if (!given.is_same(wide)) {
      if (given.sizes() != wide.sizes()) given.resize_(wide.sizes());
      given.copy_(wide);
    }
    written_.emplace_back(wide, given);
  }
  Tensor operator()(const Tensor& result) const {
    for (const auto& [wide, given] : written_) {
      if (result.is_same(wide)) return given;
    }
    return result.defined() && result.scalar_type() == at::kFloat ? result.to(narrow_) : result;
  }

 private:
  at::ScalarType narrow_;
  std::vector<std::pair<Tensor, Tensor>> written_;
};

}  // namespace

void call_cpu_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack,
                     const Dtypes& dtypes) {
  const auto arguments = torch::jit::last(*stack, dtypes.count);
  const auto narrow = narrow_of(arguments);
  const bool has_int32 = std::any_of(dtypes.indices.begin(), dtypes.indices.end(),
                                     [&](uint32_t index) { return is_int32(arguments[index]); });
  if (!narrow && !has_int32) {
    op.redispatchBoxed(keys, stack);
    return;
  }
  const std::vector<IValue> given = arguments.vec();  // copied: a kernel that refuses may have moved them
  std::vector<IValue> used;                           // what is passed instead; empty until a dtype must change
  const size_t below = stack->size() - dtypes.count;
  const auto widen = [&](const std::vector<IValue>& values) {
    std::vector<IValue> wider;
    for (const IValue& value : values) wider.push_back(widened(value));
    return wider;
  };
  at::ScalarType rounded_to = narrow.value_or(at::kFloat);
  bool wide = dtypes.float16_in_float32 && narrow == at::kHalf && float16_alone(given), longer = false;
  if (wide) used = widen(given);
  while (true) {
    if (!used.empty()) {
      stack->resize(below);
      stack->insert(stack->end(), used.begin(), used.end());
    }
    try {
      op.redispatchBoxed(keys, stack);
      break;
    } catch (const c10::Error& error) {
      if (used.empty()) used = given;
      if (narrow && !wide && says_one_of(kRefusals, error)) {
        wide = true;
        used = widen(used);
      } else if (narrow && !wide && dtypes.mixes_floats && says_one_of(kRefusalsOfMixtures, error) &&
                 float32_at_most(given)) {
        wide = true;
        used = widen(used);
        rounded_to = given[0].toTensor().scalar_type();
      } else if (has_int32 && !longer && says_one_of(kRefusalsOfIndices, error)) {
        longer = true;
        for (const uint32_t index : dtypes.indices) {
          if (is_int32(used[index])) used[index] = used[index].toTensor().to(at::kLong);
        }
      } else {
        throw;
      }
    }
  }
  if (!wide) return;

  Narrowing rounded(rounded_to);
  for (const uint32_t index : dtypes.written) {
    if (given[index].isTensor()) {
      rounded.write_back(given[index].toTensor(), used[index].toTensor());
    } else if (given[index].isTensorList()) {
      const auto from = used[index].toTensorVector(), to = given[index].toTensorVector();
      for (size_t i = 0; i < to.size(); ++i) rounded.write_back(to[i], from[i]);
    }
  }
  for (size_t i = below; i < stack->size(); ++i) {
    IValue& value = (*stack)[i];
    if (value.isTensor()) {
      value = rounded(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& tensor : value.toTensorVector()) list.push_back(rounded(tensor));
      value = list;
    }
  }
}

}  // namespace descend::npu
