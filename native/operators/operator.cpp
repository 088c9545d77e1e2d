#include "operators/operator.h"

namespace descend {

const char* Call::name(int i) const {
  if (names != nullptr && names->parameters[i] != nullptr) return names->parameters[i];
  const Parameter& p = op->parameters[i];
  return naming == Naming::kDocuments ? p.name : p.python;
}

const char* Call::operator_name() const {
  if (names != nullptr && names->op != nullptr) return names->op;
  return naming == Naming::kDocuments ? op->c_name : op->name;
}

Status check_same_shape(const Call& call, int i, int other, Code code) {
  const Dims &shape = call[i].tensor.shape, &expected = call[other].tensor.shape;
  if (shape == expected) return {};
  return call.fail(code, call.name(i), " has shape ", to_string(shape), ", but must have that of ", call.name(other),
                   ", ", to_string(expected), ".");
}

Status check_contiguous(const Call& call, int i, Code code) {
  const Tensor& tensor = call[i].tensor;
  if (is_contiguous(tensor)) return {};
  return call.fail(code, call.name(i), " has strides ", to_string(tensor.strides), " for shape ",
                   to_string(tensor.shape), ", but must be contiguous on ", info(call.product).name, ".");
}

}  // namespace descend
