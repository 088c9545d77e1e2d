// Calls of operators by name (aclopCompileAndExecute). Each is read, turned into a call of the operator behind the
// type, and put on the stream.
#include <algorithm>
#include <cstring>
#include <new>
#include <optional>

#include "acl/acl_op_compiler.h"
#include "capi/objects.h"
#include "capi/op_types.h"
#include "capi/operator_call.h"
#include "capi/stream.h"
#include "operators/prepare.h"
#include "runtime/memory_registry.h"
#include "runtime/product.h"

using namespace descend;
using namespace descend::capi;

namespace {

// The arguments of aclopCompileAndExecute or aclopCompileAndExecuteV2.
struct Given {
  const char* op_type;
  int input_count;
  const aclTensorDesc* const* input_descs;
  const aclDataBuffer* const* inputs;
  int output_count;
  const aclTensorDesc* const* output_descs;
  const aclDataBuffer* const* outputs;
  const aclopAttr* attr;
  aclopEngineType engine;
  aclopCompileType compile;
  aclrtStream stream;
  bool infers;  // V2: an output's shape may be unknown (negative dimensions)
};

// `side` is "in" or "out".
Status check_arrays(const char* side, int count, const void* descs, const void* buffers) {
  if (count < 0) {
    return failure(Code::kInvalidParam, "the number of ", side, "puts is ", count, ", but must be at least 0.");
  }
  if (count > 0 && descs == nullptr) return null_argument(concat(side, "putDesc").c_str());
  if (count > 0 && buffers == nullptr) return null_argument(concat(side, "puts").c_str());
  return {};
}

Status check_given(const Given& given) {
  if (given.op_type == nullptr) return null_argument("opType");
  DESCEND_RETURN_IF_ERROR(check_arrays("in", given.input_count, given.input_descs, given.inputs));
  DESCEND_RETURN_IF_ERROR(check_arrays("out", given.output_count, given.output_descs, given.outputs));
  if (given.engine > ACL_ENGINE_VECTOR) {
    return failure(Code::kInvalidParam, "engineType is ", static_cast<unsigned>(given.engine),
                   ", but must be 0, 1 or 2.");
  }
  if (given.compile == ACL_COMPILE_UNREGISTERED) {
    return failure(kFeatureUnsupported,
                   "user-defined operators cannot be compiled; compileFlag must be ACL_COMPILE_SYS.");
  }
  if (given.compile == ACL_COMPILE_SYS) return {};
  return failure(Code::kApiNotSupport, "compileFlag is ", static_cast<unsigned>(given.compile),
                 ", but must be ACL_COMPILE_SYS.");
}

Status find_type(const char* name, const OpType** type) {
  constexpr size_t kMostShown = 100;
  const std::string_view text(name, strnlen(name, kMostShown));
  *type = find_op_type(text);
  if (*type != nullptr) return {};
  return failure(kOpNotFound, "there is no operator of type ", text.size() < kMostShown ? "" : "(cut) ", "\"", text,
                 "\" here; the known types are: ", op_type_names(), ".");
}

// A tensor as the program describes it, and its memory.
struct Described {
  TensorDesc desc;
  DataBuffer buffer;
  bool on_host = false;  // host memory, which the program may free as soon as the call returns
  // Whether this stands for an optional tensor that was left out.
  bool absent() const { return desc.dtype == ACL_DT_UNDEFINED; }
};

Status read(const char* side, int i, const aclTensorDesc* desc, const aclDataBuffer* buffer, Described* described) {
  const auto name = [&](const char* part) { return concat(side, part, "[", i, "]"); };
  if (desc == nullptr) return null_argument(name("putDesc").c_str());
  if (buffer == nullptr) return null_argument(name("puts").c_str());
  if (!state().tensor_descs.with(desc, [&](const TensorDesc& found) { described->desc = found; })) {
    return not_alive(name("putDesc").c_str());
  }
  if (!state().data_buffers.with(buffer, [&](const DataBuffer& found) { described->buffer = found; })) {
    return not_alive(name("puts").c_str());
  }
  if (described->desc.constant) described->buffer = *described->desc.constant;
  described->on_host = described->desc.constant || described->desc.placement != ACL_MEMTYPE_DEVICE;
  return {};
}

// The number of elements; -1 if a dimension is negative or the product overflows.
int64_t elements(const Dims& shape) {
  int64_t count = 1;
  for (const int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(count, dim, &count)) return -1;
  }
  return count;
}

Tensor tensor_of(const Described& described) {
  const TensorDesc& desc = described.desc;
  Tensor tensor = contiguous_tensor(static_cast<Dtype>(desc.dtype), desc.shape, described.buffer.data);
  tensor.format = static_cast<Format>(desc.storage_format.value_or(desc.format));
  // The size of the buffer is the size of the storage.
  if (const int64_t size = dtype_size(tensor.dtype); size > 0) {
    tensor.storage_shape = {static_cast<int64_t>(std::min<uint64_t>(described.buffer.size / size, INT64_MAX))};
  }
  return tensor;
}

// Whether memory of this library, if it is that, has so many bytes from the address on. Other memory is believed.
bool has_bytes(const void* data, size_t bytes) {
  const Allocation around = find_allocation(data);
  return !around || bytes <= around.room(data);
}

// The values of an input that the operator takes as a list of numbers.
Status read_numbers(const Call& call, int i, const OpTensor& expected, const Described& described, Dims* list) {
  const TensorDesc& desc = described.desc;
  const auto dtype = static_cast<Dtype>(desc.dtype);
  const auto refused = [&](const auto&... parts) { return call.fail(kOpInputNotMatch, call.name(i), parts...); };
  if (!expected.numbers.has(dtype)) {
    return refused(" has dtype ", dtype_name(dtype), ", but must be ", list_of(expected.numbers), ".");
  }
  if (desc.shape.size() > 1) return refused(" has shape ", to_string(desc.shape), ", but must have rank 1.");
  if (!described.on_host) {
    return refused(
        " must be known when the operator is called: set it by aclSetTensorConst, or place it in host memory "
        "by aclSetTensorPlaceMent.");
  }
  const int64_t count = elements(desc.shape), size = dtype_size(dtype);
  if (count < 0 || static_cast<uint64_t>(count) > described.buffer.size / static_cast<uint64_t>(size) ||
      (described.buffer.data == nullptr && count > 0)) {
    return refused(" has shape ", to_string(desc.shape), ", which its ", described.buffer.size, " bytes do not hold.");
  }
  if (!has_bytes(described.buffer.data, static_cast<size_t>(count * size))) {
    return refused(" has shape ", to_string(desc.shape), ", but its memory ends before.");
  }
  list->clear();
  for (int64_t k = 0; k < count; ++k) {
    const char* const from = static_cast<const char*>(described.buffer.data) + k * size;
    int64_t wide;
    int32_t narrow;
    std::memcpy(&wide, from, dtype == Dtype::kInt64 ? sizeof(wide) : 0);
    std::memcpy(&narrow, from, dtype == Dtype::kInt64 ? 0 : sizeof(narrow));
    list->push_back(dtype == Dtype::kInt64 ? wide : narrow);
  }
  return {};
}

// Copies an input in host memory, which may be gone when the operator runs. If the memory is too small for the shape,
// the contract's checks refuse the call.
void copy_from_host(OpCall& call, Tensor& tensor) {
  const int64_t count = elements(tensor.shape), size = dtype_size(tensor.dtype);
  if (tensor.data == nullptr || count <= 0 || size == 0 || count > tensor.storage_shape[0]) return;
  const auto bytes = static_cast<size_t>(count * size);
  if (!has_bytes(tensor.data, bytes)) return;
  const auto copy = std::make_shared<std::vector<std::max_align_t>>(bytes / sizeof(std::max_align_t) + 1);
  std::memcpy(copy->data(), tensor.data, bytes);
  tensor.data = copy->data();
  tensor.storage_shape = tensor.shape;
  call.around.kept.push_back(copy);
}

Status check_count(const Call& call, const char* what, Code code, const std::vector<OpTensor>& expected, int count) {
  const auto most = static_cast<int>(expected.size());
  int least = most;
  while (least > 0 && expected[least - 1].optional) --least;
  if (least <= count && count <= most) return {};
  return call.fail(code, "has ", count, " ", what, "s, but must have ", least == most ? "" : concat(least, " to "),
                   most, ".");
}

// If the program names a tensor, the name must be that of its place.
Status check_name(const Call& call, Code code, const OpTensor& expected, const Described& described) {
  if (described.desc.name.empty() || described.desc.name == expected.name) return {};
  return call.fail(code, "has \"", described.desc.name, "\" in the place of ", expected.name, ".");
}

// A storage may have another shape than the tensor, but must have as many elements.
Status check_storage(const Call& call, const OpTensor& expected, const Described& described) {
  const TensorDesc& desc = described.desc;
  if (!desc.storage_shape || elements(*desc.storage_shape) == elements(desc.shape)) return {};
  return call.fail(Code::kParamInvalid, expected.name, " has shape ", to_string(desc.shape), " and is stored as ",
                   to_string(*desc.storage_shape), ", which has another number of elements.");
}

Status read_input(OpCall& call, const OpTensor& expected, const Described& described) {
  Call& target = call.call;
  DESCEND_RETURN_IF_ERROR(check_name(target, kOpInputNotMatch, expected, described));
  if (described.absent()) {
    if (expected.optional) return {};
    return target.fail(Code::kParamNullptr, expected.name, " is null, but must be given.");
  }
  Argument& argument = target[expected.parameter];
  argument.state = Argument::State::kGiven;
  if (!expected.numbers.empty()) {
    return read_numbers(target, expected.parameter, expected, described, &argument.list);
  }
  DESCEND_RETURN_IF_ERROR(check_storage(target, expected, described));
  argument.tensor = tensor_of(described);
  if (described.on_host) copy_from_host(call, argument.tensor);
  return {};
}

// An output whose shape the program does not know. It follows from the inputs.
struct Unknown {
  int parameter;
  const aclTensorDesc* desc;
  Tensor tensor;
};

Status read_output(OpCall& call, const OpTensor& expected, const Described& described, const aclTensorDesc* desc,
                   std::vector<Unknown>* unknown) {
  Call& target = call.call;
  DESCEND_RETURN_IF_ERROR(check_name(target, kOpOutputNotMatch, expected, described));
  if (described.absent()) {
    if (expected.optional) return {};
    return target.fail(Code::kParamNullptr, expected.name, " is null, but must be given.");
  }
  const Dims& shape = described.desc.shape;
  if (unknown != nullptr && std::any_of(shape.begin(), shape.end(), [](int64_t dim) { return dim < 0; })) {
    unknown->push_back({expected.parameter, desc, tensor_of(described)});
    return {};
  }
  DESCEND_RETURN_IF_ERROR(check_storage(target, expected, described));
  target[expected.parameter].tensor = tensor_of(described);
  target[expected.parameter].state = Argument::State::kGiven;
  return {};
}

// Reads the value into the argument. False if it is of another kind.
bool read_value(const Attribute& attribute, Kind kind, Argument& argument) {
  switch (kind) {
    case Kind::kBool:
      if (const auto* value = std::get_if<bool>(&attribute)) return argument.flag = *value, true;
      return false;
    case Kind::kInt:
      if (const auto* value = std::get_if<int64_t>(&attribute)) return argument.integer = *value, true;
      return false;
    case Kind::kFloat:
      if (const auto* value = std::get_if<float>(&attribute)) return argument.real = *value, true;
      return false;
    case Kind::kString:
      if (const auto* value = std::get_if<std::string>(&attribute)) return argument.text = *value, true;
      return false;
    case Kind::kIntArray:
      if (const auto* value = std::get_if<std::vector<int64_t>>(&attribute)) {
        argument.list.assign(value->data(), value->size());
        return true;
      }
      return false;
    case Kind::kBoolArray:
      if (const auto* value = std::get_if<Bools>(&attribute)) {
        argument.list.assign(value->values.data(), value->values.size());
        return true;
      }
      return false;
    default:
      return false;
  }
}

const char* wanted_kind(Kind kind) {
  switch (kind) {
    case Kind::kBool:
      return kind_of(Attribute(false));
    case Kind::kInt:
      return kind_of(Attribute(int64_t{0}));
    case Kind::kFloat:
      return kind_of(Attribute(0.0f));
    case Kind::kString:
      return kind_of(Attribute(std::string()));
    case Kind::kIntArray:
      return kind_of(Attribute(std::vector<int64_t>()));
    default:
      return kind_of(Attribute(Bools()));
  }
}

Status read_attributes(OpCall& call, const Attributes& given) {
  const std::vector<OpAttribute>& expected = call.type.attributes;
  for (const auto& [name, value] : given) {
    // Frameworks add attributes of their own, whose names begin with an underscore.
    if (name.starts_with('_')) continue;
    const bool known = std::any_of(expected.begin(), expected.end(), [&](const auto& one) { return name == one.name; });
    if (known) continue;
    return call.call.fail(kOpAttributeNotMatch, "has no attribute \"", name.substr(0, 100), "\".");
  }
  for (const OpAttribute& one : expected) {
    Argument value = one.value;
    if (const auto found = given.find(one.name); found != given.end()) {
      if (!read_value(found->second, one.kind, value)) {
        return call.call.fail(kOpAttributeNotMatch, one.name, " is ", kind_of(found->second), ", but must be ",
                              wanted_kind(one.kind), ".");
      }
    } else if (one.required) {
      return call.call.fail(kOpAttributeNotMatch, one.name, " must be given; it is ", wanted_kind(one.kind), ".");
    }
    value.state = Argument::State::kGiven;
    if (one.parameter >= 0) call.call[one.parameter] = value;
    call.attributes.push_back(std::move(value));
  }
  return {};
}

// Fills in the shapes of outputs that the program does not know.
void infer(Call& call, const std::vector<Unknown>& unknown) {
  if (unknown.empty()) return;
  call.op->infer(call);
  for (const Unknown& output : unknown) {
    Argument& argument = call[output.parameter];
    const Dims shape = argument.tensor.shape;
    argument.tensor = output.tensor;
    argument.tensor.shape = shape;
    argument.tensor.strides = contiguous_strides(shape);
    argument.state = Argument::State::kGiven;
  }
}

// Turns what the program passes into a call of the operator that serves the type.
Status read_call(const Given& given, OpCall& call, std::vector<Unknown>* unknown) {
  const OpType& type = call.type;
  Call& target = call.call;
  if (Status status = current_product(&target.product); !status.ok()) return target.fail(status.code, status.sentence);
  DESCEND_RETURN_IF_ERROR(check_count(target, "input", kOpInputNotMatch, type.inputs, given.input_count));
  DESCEND_RETURN_IF_ERROR(check_count(target, "output", kOpOutputNotMatch, type.outputs, given.output_count));
  for (int i = 0; i < given.input_count; ++i) {
    Described described;
    DESCEND_RETURN_IF_ERROR(read("in", i, given.input_descs[i], given.inputs[i], &described));
    DESCEND_RETURN_IF_ERROR(read_input(call, type.inputs[i], described));
  }
  for (int i = 0; i < given.output_count; ++i) {
    Described described;
    DESCEND_RETURN_IF_ERROR(read("out", i, given.output_descs[i], given.outputs[i], &described));
    DESCEND_RETURN_IF_ERROR(
        read_output(call, type.outputs[i], described, given.output_descs[i], given.infers ? unknown : nullptr));
  }
  Attributes attributes;
  if (given.attr != nullptr) {
    const bool alive = state().attributes.with(given.attr, [&](const Attributes& found) { attributes = found; });
    if (!alive) return not_alive("attr");
  }
  DESCEND_RETURN_IF_ERROR(read_attributes(call, attributes));
  if (type.complete != nullptr) DESCEND_RETURN_IF_ERROR(type.complete(call));
  infer(target, *unknown);
  return {};
}

Status check_and_plan(Executor& executor, OpCall& call) {
  if (call.type.extend != nullptr) {
    DESCEND_RETURN_IF_ERROR(prepare(call.call, nullptr));
    DESCEND_RETURN_IF_ERROR(call.type.extend(call));
  }
  return executor.prepare();
}

Status execute(const Given& given) {
  DESCEND_RETURN_IF_ERROR(check_given(given));
  const OpType* type;
  DESCEND_RETURN_IF_ERROR(find_type(given.op_type, &type));
  std::shared_ptr<Stream> stream;
  DESCEND_RETURN_IF_ERROR(get_stream(given.stream, &stream));

  const auto executor = std::make_shared<Executor>();
  executor->reset(*type->op, Product::kHost, Naming::kDocuments);
  OpCall call{.type = *type, .call = executor->call(), .attributes = {}, .around = {}};
  Call& target = call.call;
  target.names = &type->names;
  std::vector<Unknown> unknown;
  Status answer = read_call(given, call, &unknown);
  const bool is_read = answer.ok();
  remember_call(is_read ? LastCall{executor, {}} : LastCall{nullptr, answer});
  const auto as_given = is_recording() ? std::make_optional(target) : std::nullopt;  // what follows may change it
  if (is_read) answer = check_and_plan(*executor, call);
  if (as_given) executor->set_meter(record_call(*as_given, answer, is_read));
  DESCEND_RETURN_IF_ERROR(answer);
  DESCEND_RETURN_IF_ERROR(executor->launch(*stream, std::move(call.around)));
  for (const Unknown& output : unknown) {
    state().tensor_descs.with(output.desc,
                              [&](TensorDesc& desc) { desc.shape = target[output.parameter].tensor.shape; });
  }
  return {};
}

}  // namespace

aclError aclopCompileAndExecute(const char* opType, int numInputs, const aclTensorDesc* const inputDesc[],
                                const aclDataBuffer* const inputs[], int numOutputs,
                                const aclTensorDesc* const outputDesc[], aclDataBuffer* const outputs[],
                                const aclopAttr* attr, aclopEngineType engineType, aclopCompileType compileFlag,
                                const char*, aclrtStream stream) {
  return runtime_call("aclopCompileAndExecute", [&] {
    return execute({opType, numInputs, inputDesc, inputs, numOutputs, outputDesc, outputs, attr, engineType,
                    compileFlag, stream, false});
  });
}

aclError aclopCompileAndExecuteV2(const char* opType, int numInputs, aclTensorDesc* inputDesc[],
                                  aclDataBuffer* inputs[], int numOutputs, aclTensorDesc* outputDesc[],
                                  aclDataBuffer* outputs[], aclopAttr* attr, aclopEngineType engineType,
                                  aclopCompileType compileFlag, const char*, aclrtStream stream) {
  return runtime_call("aclopCompileAndExecuteV2", [&] {
    return execute({opType, numInputs, inputDesc, inputs, numOutputs, outputDesc, outputs, attr, engineType,
                    compileFlag, stream, true});
  });
}
