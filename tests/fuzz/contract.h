// What the contract says that a call of an operator must be answered with. It is written from the contract's pages and
// the headers, not from the engine, and it decides by trying out all elements where the engine reasons.
#pragma once

#include <vector>

#include "bytes.h"
#include "call.h"

namespace fuzz {

// The statuses that phase 1 may return. More than one where rules are broken that have no order, or where the contract
// leaves room.
Codes first_phase(const Call& call);

// Whether the call reads or writes tensor i.
bool uses(const Call& call, size_t i);

// Tensors with so many elements are not looked at one by one.
inline constexpr int64_t kMany = int64_t{1} << 20;

// The number of elements; -1 for a negative dimension, and for kMany elements.
int64_t count_of(const Shape& shape);

// The place of each element, in elements from the tensor's data; null where they are not counted. It is valid until the
// thread asks again.
const std::vector<int64_t>* places(const TensorArgument& tensor);

int64_t element_size(int dtype);

// The windows of NsaCompress: the first token of each. False if the lengths break a rule that holds on every product.
bool windows(const Call& call, int64_t tokens, std::vector<int64_t>* starts);

}  // namespace fuzz
