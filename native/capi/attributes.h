// Attributes of an operator, as a program sets them (aclopSetAttr...).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "acl/acl_base.h"

namespace descend::capi {

struct Bools {
  std::vector<int64_t> values;
};
using Attribute =
    std::variant<bool, int64_t, float, std::string, aclDataType, Bools, std::vector<int64_t>, std::vector<float>,
                 std::vector<std::string>, std::vector<aclDataType>, std::vector<std::vector<int64_t>>>;
using Attributes = std::map<std::string, Attribute, std::less<>>;

// What messages call its type: "an integer".
const char* kind_of(const Attribute& attribute);

}  // namespace descend::capi
