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

}  // namespace descend
