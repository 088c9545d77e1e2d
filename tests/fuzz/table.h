// The operators' tables, as the engine has them: what a call's products, dtypes and nulls may be. An operator is in the
// fuzzer as soon as it has a table.
#pragma once

#include <vector>

#include "aclnn/aclnn_base.h"
#include "call.h"
#include "operators/operator.h"

namespace fuzz {

const descend::Operator* table_of(Op op);  // null for kOfTable
// The operators that have no rules of their own in contract.cpp: calls of them are kOfTable.
const std::vector<const descend::Operator*>& other_operators();

const char* name_of(const Call& call);
const descend::Parameter& parameter(const Call& call, size_t tensor);
// The tensors of one role, in the order in which aclSetInputTensorAddr and aclSetOutputTensorAddr count them.
std::vector<size_t> tensors_of(const Call& call, descend::Role role);
// The parameter of a kind of which an operator has one at most; null if it has none.
const descend::Parameter* find_parameter(const Call& call, descend::Kind kind);
bool is_optional(const Call& call, const descend::Parameter& parameter);
bool exists(const Call& call);  // on the call's product
// Whether some row of the table has the dtypes of the tensors for which `given` is true.
bool has_row(const Call& call, const std::vector<bool>& given);
std::vector<int> dtypes_of(descend::DtypeSet set);
descend::Product product_of(Product product);
// Whether the operator checks, and reads or writes, tensor i. For kOfTable.
bool table_counts(const Call& call, size_t i);
bool table_uses(const Call& call, size_t i);

using SecondPhase = aclnnStatus (*)(void*, uint64_t, aclOpExecutor*, aclrtStream);
void* first_phase_of(const descend::Operator& op);  // the function's address
SecondPhase second_phase_of(const descend::Operator& op);

}  // namespace fuzz
