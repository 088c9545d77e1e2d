// The operators as a function that XLA's programs call: descend.jax registers it. It runs on XLA's threads, without
// Python, reads the operands and writes the results where XLA has them.
#include <algorithm>
#include <new>
#include <string_view>

#include "bindings/engine.h"
#include "bindings/python.h"
#include "bindings/xla_ffi.h"

namespace descend::python {
namespace {

Status refuse(const Operator& op, const auto&... parts) {
  return failure(Code::kInner, op.name, ": the call from XLA ", parts..., ".");
}

Dtype engine_dtype(xla::DataType type) {
  switch (type) {
    case xla::DataType::kBool:
      return Dtype::kBool;
    case xla::DataType::kInt32:
      return Dtype::kInt32;
    case xla::DataType::kInt64:
      return Dtype::kInt64;
    case xla::DataType::kFloat16:
      return Dtype::kFloat16;
    case xla::DataType::kFloat:
      return Dtype::kFloat;
    case xla::DataType::kDouble:
      return Dtype::kDouble;
    case xla::DataType::kBfloat16:
      return Dtype::kBfloat16;
    default:
      return Dtype::kUndefined;  // no operator takes the others
  }
}

// An attribute of the call by its name; null if it has none, or one of another type.
const void* find(const xla::Attributes& attributes, std::string_view name, xla::AttributeType type) {
  for (int64_t i = 0; i < attributes.size; ++i) {
    if (name == std::string_view(attributes.names[i]->data, attributes.names[i]->size)) {
      return attributes.types[i] == type ? attributes.values[i] : nullptr;
    }
  }
  return nullptr;
}

template <class T>
const T* find_scalar(const xla::Attributes& attributes, std::string_view name, xla::DataType dtype) {
  const auto* scalar = static_cast<const xla::Scalar*>(find(attributes, name, xla::AttributeType::kScalar));
  return scalar != nullptr && scalar->dtype == dtype ? static_cast<const T*>(scalar->value) : nullptr;
}

std::string_view find_text(const xla::Attributes& attributes, std::string_view name) {
  const auto* text = static_cast<const xla::Span*>(find(attributes, name, xla::AttributeType::kString));
  return text == nullptr ? std::string_view() : std::string_view(text->data, text->size);
}

// A list of 64-bit integers. Flags are passed as such a list, too.
bool find_list(const xla::Attributes& attributes, std::string_view name, Dims* list) {
  const auto* array = static_cast<const xla::Array*>(find(attributes, name, xla::AttributeType::kArray));
  if (array == nullptr || array->dtype != xla::DataType::kInt64) return false;
  list->assign(static_cast<const int64_t*>(array->data), array->size);
  return true;
}

// Reads the attribute of a parameter, if the call has it.
void read(const xla::Attributes& attributes, const Parameter& parameter, Argument* argument) {
  const auto take = [&](const auto* value, auto* to) {
    if (value == nullptr) return;
    *to = *value;
    argument->state = Argument::State::kGiven;
  };
  switch (parameter.kind) {
    case Kind::kInt:
      return take(find_scalar<int64_t>(attributes, parameter.python, xla::DataType::kInt64), &argument->integer);
    case Kind::kFloat:
      return take(find_scalar<double>(attributes, parameter.python, xla::DataType::kDouble), &argument->real);
    case Kind::kBool:
      return take(find_scalar<bool>(attributes, parameter.python, xla::DataType::kBool), &argument->flag);
    case Kind::kString:
      argument->text = find_text(attributes, parameter.python);
      if (!argument->text.empty()) argument->state = Argument::State::kGiven;
      return;
    case Kind::kIntArray:
    case Kind::kBoolArray:
      if (find_list(attributes, parameter.python, &argument->list)) argument->state = Argument::State::kGiven;
      return;
    case Kind::kTensor:
      return;
  }
}

const xla::Buffer* buffer(const xla::Values& values, int64_t i) {
  return i < values.size && values.types[i] == xla::kBuffer ? static_cast<const xla::Buffer*>(values.values[i])
                                                            : nullptr;
}

Dims sizes_of(const xla::Buffer& from) { return Dims(from.sizes, static_cast<uint64_t>(from.rank)); }

Status run(const xla::CallFrame& frame, const Operator& op) {
  const Engine& engine = the_engine();
  Executor& executor = engine.begin(op);
  Call& call = engine.call(executor);
  const auto count = static_cast<int>(op.parameters.size());
  for (int i = 0; i < count; ++i) read(frame.attributes, op.parameters[i], &call[i]);

  Dims places;  // the parameter of each operand
  if (!find_list(frame.attributes, "operands", &places) || static_cast<int64_t>(places.size()) != frame.operands.size) {
    return refuse(op, "does not say which parameters its operands are");
  }
  for (uint64_t k = 0; k < places.size(); ++k) {
    const xla::Buffer* from = buffer(frame.operands, static_cast<int64_t>(k));
    if (from == nullptr || places[k] < 0 || places[k] >= count || op.parameters[places[k]].role != Role::kInput) {
      return refuse(op, "has an operand ", k, " that is none of the operator");
    }
    Argument& argument = call[static_cast<int>(places[k])];
    argument.tensor = contiguous_tensor(engine_dtype(from->dtype), sizes_of(*from));
    engine.set_memory(argument.tensor, from->data);
    argument.state = Argument::State::kGiven;
  }
  DESCEND_RETURN_IF_ERROR(engine.prepare(executor));

  int64_t next = 0;
  for (int i = 0; i < count; ++i) {
    if (op.parameters[i].role != Role::kOutput || !is_used(call, i)) continue;
    const xla::Buffer* to = buffer(frame.results, next++);
    Tensor& tensor = call[i].tensor;
    if (to == nullptr || engine_dtype(to->dtype) != tensor.dtype || sizes_of(*to) != tensor.shape) {
      return refuse(op, "has no result that ", op.parameters[i].python, " fits in, ", dtype_name(tensor.dtype),
                    to_string(tensor.shape));
    }
    tensor.data = to->data;
  }
  if (next != frame.results.size) return refuse(op, "has ", frame.results.size, " results, but must have ", next);
  return engine.run(executor);
}

xla::Error* error(const xla::CallFrame& frame, xla::ErrorCode code, const char* sentence) {
  xla::ErrorArguments arguments{sizeof(xla::ErrorArguments), nullptr, sentence, code};
  return frame.api->create_error(&arguments);
}

xla::Error* execute(const xla::CallFrame& frame) {
  const std::string name(find_text(frame.attributes, "operator"));
  const Operator* op = the_engine().find_operator(name.c_str());
  if (op == nullptr) {
    const std::string sentence = concat("There is no operator '", name, "'.");
    return error(frame, xla::ErrorCode::kInvalidArgument, sentence.c_str());
  }
  const Status status = run(frame, *op);
  if (status.ok()) return nullptr;
  const auto code = status.no_memory              ? xla::ErrorCode::kResourceExhausted
                    : status.code == Code::kInner ? xla::ErrorCode::kInternal
                                                  : xla::ErrorCode::kInvalidArgument;
  return error(frame, code, status.sentence.c_str());
}

// XLA calls this to ask for the handler's version, and in each stage of an execution.
xla::Error* handle(xla::CallFrame* frame) noexcept {
  for (xla::Extension* each = frame->extensions; each != nullptr; each = each->next) {
    if (each->type != xla::kMetadata) continue;
    xla::Metadata& metadata = *reinterpret_cast<xla::MetadataExtension*>(each)->metadata;
    // Every minor version of major version 0 has what is used here, so the answer is the version of this XLA. Version
    // 0.1 of XLA does not report its version.
    const bool said = frame->api != nullptr && frame->api->version.major == 0;
    metadata.version.major = 0;
    metadata.version.minor = said ? frame->api->version.minor : 1;
    metadata.traits = 0;
    return nullptr;
  }
  if (frame->stage != xla::kExecute) return nullptr;
  try {
    return execute(*frame);
  } catch (const std::bad_alloc&) {
    return error(*frame, xla::ErrorCode::kResourceExhausted, "There is no memory for a call of Descend's.");
  }
}

}  // namespace

void bind_xla(nb::module_& module) { module.attr("_xla_handler") = nb::capsule(reinterpret_cast<void*>(handle)); }

}  // namespace descend::python
