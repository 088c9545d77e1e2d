#include "capi/attributes.h"

#include <iterator>

namespace descend::capi {

const char* kind_of(const Attribute& attribute) {
  constexpr const char* kNames[] = {"a bool",
                                    "an integer",
                                    "a float",
                                    "a string",
                                    "a data type",
                                    "a list of bools",
                                    "a list of integers",
                                    "a list of floats",
                                    "a list of strings",
                                    "a list of data types",
                                    "a list of lists of integers"};
  static_assert(std::size(kNames) == std::variant_size_v<Attribute>);
  return kNames[attribute.index()];
}

}  // namespace descend::capi
