#include "table.h"

#include <dlfcn.h>

#include <algorithm>
#include <map>

#include "bytes.h"
#include "operators/registry.h"

namespace fuzz {
namespace {

const char* const kNames[kOps] = {"aclnnRmsNorm",
                                  "aclnnRmsNormGrad",
                                  "aclnnLayerNorm",
                                  "aclnnLayerNormBackward",
                                  "aclnnGroupNormSwish",
                                  "aclnnGroupNormSwishGrad",
                                  "aclnnNsaCompress",
                                  "aclnnNsaCompressGrad",
                                  "aclnnScaledMaskedSoftmax",
                                  "aclnnScaledMaskedSoftmaxBackward"};

struct Functions {
  void* first;
  SecondPhase second;
};

template <class Function>
Function find(const std::string& name) {
  void* const found = dlsym(RTLD_DEFAULT, name.c_str());
  if (found == nullptr) fault(name + " is missing");
  return reinterpret_cast<Function>(found);
}

const Functions& functions_of(const descend::Operator& op) {
  static const auto all = [] {
    std::map<const descend::Operator*, Functions> functions;
    const auto add = [&functions](const descend::Operator* one) {
      const std::string name = one->c_name;
      functions[one] = {find<void*>(name + "GetWorkspaceSize"), find<SecondPhase>(name)};
    };
    for (const descend::Operator* one : descend::operators()) {
      add(one);
      if (one->variants == nullptr) continue;
      for (const descend::Operator* variant : one->variants()) add(variant);
    }
    return functions;
  }();
  return all.at(&op);
}

// The call as the engine sees it: what its own functions of a table are asked with.
descend::Call as_engine_call(const Call& call) {
  descend::Call result;
  result.op = call.table;
  result.product = product_of(call.product);
  const auto state = [](Handle handle) {
    using enum descend::Argument::State;
    return handle == Handle::kNull ? kNull : handle == Handle::kAlive ? kGiven : kForeign;
  };
  size_t tensor = 0, attribute = 0;
  for (size_t i = 0; i < call.table->parameters.size(); ++i) {
    descend::Argument& argument = result.arguments[i];
    const auto give_list = [&](const ListArgument& list) {
      argument.state = state(list.handle);
      argument.list.assign(list.values.data(), list.values.size());
    };
    switch (call.table->parameters[i].kind) {
      case descend::Kind::kTensor: {
        const TensorArgument& given = call.tensors[tensor++];
        argument.state = state(given.handle);
        argument.tensor.dtype = static_cast<descend::Dtype>(given.dtype);
        argument.tensor.shape.assign(given.shape.data(), given.shape.size());
        break;
      }
      case descend::Kind::kIntArray:
        give_list(call.list);
        break;
      case descend::Kind::kBoolArray:
        give_list(call.mask);
        break;
      case descend::Kind::kString:
        if (call.text != nullptr) argument.text = call.text, argument.state = descend::Argument::State::kGiven;
        break;
      default:
        argument.state = descend::Argument::State::kGiven;
        argument.integer = call.attributes[attribute].integer;
        argument.flag = argument.integer != 0;
        argument.real = call.attributes[attribute++].real;
    }
  }
  return result;
}

int place_of(const Call& call, size_t tensor) {
  return static_cast<int>(&parameter(call, tensor) - call.table->parameters.data());
}

}  // namespace

const descend::Operator* table_of(Op op) {
  static const auto tables = [] {
    std::vector<const descend::Operator*> found;
    for (const char* name : kNames) found.push_back(descend::find_operator(name));
    return found;
  }();
  return op == Op::kOfTable ? nullptr : tables[static_cast<size_t>(op)];
}

const std::vector<const descend::Operator*>& other_operators() {
  static const auto others = [] {
    std::vector<const descend::Operator*> found;
    for (const descend::Operator* op : descend::operators()) {
      const auto known = [op](const char* name) { return op->c_name == std::string_view(name); };
      if (std::none_of(kNames, kNames + kOps, known)) found.push_back(op);
      if (op->variants != nullptr) found.insert(found.end(), op->variants().begin(), op->variants().end());
    }
    return found;
  }();
  return others;
}

const char* name_of(const Call& call) { return call.table != nullptr ? call.table->c_name : "no operator"; }

const descend::Parameter& parameter(const Call& call, size_t tensor) {
  tensor = call.own(tensor);
  for (const descend::Parameter& one : call.table->parameters) {
    if (one.kind == descend::Kind::kTensor && tensor-- == 0) return one;
  }
  fault("a call has more tensors than its operator");
}

std::vector<size_t> tensors_of(const Call& call, descend::Role role) {
  std::vector<size_t> found;
  size_t tensor = 0;
  for (const descend::Parameter& one : call.table->parameters) {
    if (one.kind != descend::Kind::kTensor) continue;
    if (one.role == role) found.push_back(call.own(tensor));
    ++tensor;
  }
  return found;
}

const descend::Parameter* find_parameter(const Call& call, descend::Kind kind) {
  for (const descend::Parameter& one : call.table->parameters) {
    if (one.kind == kind) return &one;
  }
  return nullptr;
}

bool is_optional(const Call& call, const descend::Parameter& one) {
  return one.optional || (one.optional_on_host && call.product == Product::kHost);
}

bool exists(const Call& call) { return call.table->products.has(product_of(call.product)); }

bool has_row(const Call& call, const std::vector<bool>& given) {
  const bool no_bfloat16 = call.product == Product::kInference || call.product == Product::kTraining;
  for (const descend::DtypeRow& row : call.table->dtypes) {
    bool fits = row.products.has(product_of(call.product));
    for (size_t i = 0; i < call.given && fits; ++i) {
      const int dtype = call.tensors[i].dtype;
      fits = !given[i] || (row.sets[i].has(static_cast<descend::Dtype>(dtype)) && !(no_bfloat16 && dtype == ACL_BF16));
    }
    if (fits) return true;
  }
  return false;
}

std::vector<int> dtypes_of(descend::DtypeSet set) {
  std::vector<int> result;
  for (int dtype = 0; dtype < 64; ++dtype) {
    if (set.has(static_cast<descend::Dtype>(dtype))) result.push_back(dtype);
  }
  return result;
}

descend::Product product_of(Product product) {
  using enum descend::Product;
  constexpr descend::Product kSame[kProducts] = {kHost,           kAtlasA3,        kAtlasA2Training, kAtlasA2Inference,
                                                 kAtlas200I500A2, kAtlasInference, kAtlasTraining,   kAscend950};
  return kSame[static_cast<int>(product)];
}

bool table_counts(const Call& call, size_t i) {
  return call.table->counts == nullptr || descend::is_counted(as_engine_call(call), place_of(call, i));
}
bool table_uses(const Call& call, size_t i) {
  if (call.table->counts == nullptr && call.table->computes == nullptr) return true;
  return descend::is_used(as_engine_call(call), place_of(call, i));
}

void* first_phase_of(const descend::Operator& op) { return functions_of(op).first; }
SecondPhase second_phase_of(const descend::Operator& op) { return functions_of(op).second; }

}  // namespace fuzz
