#include "operators/registry.h"

namespace descend {

std::span<const Operator* const> operators() {
  static constexpr const Operator* list[] = {
#define DESCEND_OPERATOR(name) &name,
#include "operators/list.inc"
#undef DESCEND_OPERATOR
  };
  return list;
}

const Operator* find_operator(std::string_view name) {
  for (const Operator* op : operators()) {
    if (name == op->name || name == op->c_name) return op;
  }
  return nullptr;
}

}  // namespace descend
