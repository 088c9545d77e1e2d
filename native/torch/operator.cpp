#include "torch/operator.h"

#include <new>
#include <string>

#include "torch/engine_call.h"

namespace descend::pytorch {
namespace {

bool import_attribute(Argument& argument, Kind kind, const c10::IValue& value) {
  switch (kind) {
    case Kind::kInt:
      if (!value.isInt()) return false;
      argument.integer = value.toInt();
      return true;
    case Kind::kFloat:
      if (!value.isDouble()) return false;
      argument.real = value.toDouble();
      return true;
    case Kind::kBool:
      if (!value.isBool()) return false;
      argument.flag = value.toBool();
      return true;
    case Kind::kString:
      if (!value.isString()) return false;
      argument.text = value.toStringRef();
      return true;
    case Kind::kIntArray: {
      if (!value.isIntList()) return false;
      const std::vector<int64_t> numbers = value.toIntVector();
      argument.list.assign(numbers.data(), numbers.size());
      return true;
    }
    case Kind::kBoolArray: {
      if (!value.isBoolList()) return false;
      const c10::List<bool> list = value.toBoolList();
      const std::vector<int64_t> flags(list.begin(), list.end());
      argument.list.assign(flags.data(), flags.size());
      return true;
    }
    case Kind::kTensor:
      break;
  }
  return false;
}

}  // namespace

TorchOperator::TorchOperator(const char* name) : definition_(&find_operator(name)) {
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(("descend::" + std::string(name)).c_str(), "");
  const auto count = static_cast<int>(definition_->parameters.size());
  for (const c10::Argument& argument : handle.schema().arguments()) {
    int i = 0;
    while (i < count && argument.name() != definition_->parameters[i].python) ++i;
    TORCH_CHECK(i < count, name, " has no parameter ", argument.name());
    parameters_.push_back(i);
  }
  for (int i = 0; i < count; ++i) {
    if (definition_->parameters[i].role == Role::kOutput) outputs_.push_back(i);
  }
}

bool TorchOperator::give(EngineCall& call, at::ArrayRef<c10::IValue> arguments) const {
  for (size_t k = 0; k < arguments.size(); ++k) {
    const c10::IValue& value = arguments[k];
    const int i = parameters_[k];
    if (value.isNone() || (value.isTensor() && !value.toTensor().defined())) continue;  // arguments are null by default
    const Kind kind = definition_->parameters[i].kind;
    call[i].state = Argument::State::kGiven;
    if (kind == Kind::kTensor ? !value.isTensor() || !call.give(i, value.toTensor())
                              : !import_attribute(call[i], kind, value)) {
      return false;
    }
  }
  return true;
}

std::optional<std::vector<at::Tensor>> TorchOperator::run(at::ArrayRef<c10::IValue> arguments) const {
  try {
    EngineCall call(*definition_);
    if (!give(call, arguments) || !call.prepare()) return std::nullopt;
    std::vector<at::Tensor> results(outputs_.size());
    for (size_t k = 0; k < outputs_.size(); ++k) {
      if (is_used(call.call(), outputs_[k])) results[k] = call.allocate_result(outputs_[k]);
    }
    if (!call.run()) return std::nullopt;
    return results;
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
}

}  // namespace descend::pytorch
