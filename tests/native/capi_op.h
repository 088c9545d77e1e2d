// For tests of operators by name: their attributes, and a call whose descriptions are gone when it returns.
#pragma once

#include <vector>

#include "acl/acl_op_compiler.h"
#include "capi.h"

class OpAttributes {
 public:
  OpAttributes() = default;
  OpAttributes(const OpAttributes&) = delete;
  ~OpAttributes() { aclopDestroyAttr(attr_); }

  OpAttributes& integer(const char* name, int64_t value) { return kept(aclopSetAttrInt(attr_, name, value)); }
  OpAttributes& real(const char* name, float value) { return kept(aclopSetAttrFloat(attr_, name, value)); }
  OpAttributes& flag(const char* name, bool value) { return kept(aclopSetAttrBool(attr_, name, value)); }
  OpAttributes& text(const char* name, const char* value) { return kept(aclopSetAttrString(attr_, name, value)); }
  OpAttributes& flags(const char* name, std::vector<uint8_t> values) {
    return kept(aclopSetAttrListBool(attr_, name, static_cast<int>(values.size()), values.data()));
  }

  operator aclopAttr*() const { return attr_; }

 private:
  OpAttributes& kept(aclError status) {
    REQUIRE(status == 0);
    return *this;
  }
  aclopAttr* attr_ = aclopCreateAttr();
};

// A description and a buffer, which a test may change before the call.
struct OpTensor {
  aclTensorDesc* desc = nullptr;
  aclDataBuffer* buffer = nullptr;
};
inline OpTensor described(Array* array) {
  if (array == nullptr) {
    return {aclCreateTensorDesc(ACL_DT_UNDEFINED, 0, nullptr, ACL_FORMAT_UNDEFINED), aclCreateDataBuffer(nullptr, 0)};
  }
  const std::vector<int64_t>& shape = array->shape();
  return {aclCreateTensorDesc(array->dtype(), static_cast<int>(shape.size()), shape.data(), ACL_FORMAT_ND),
          aclCreateDataBuffer(array->data(), array->bytes())};
}

// Null stands for an optional tensor that is left out.
class OpTensors {
 public:
  OpTensors(const std::vector<Array*>& arrays) {
    for (Array* array : arrays) add(described(array));
  }
  OpTensors(const OpTensors&) = delete;
  ~OpTensors() {
    for (const aclTensorDesc* desc : descs) aclDestroyTensorDesc(desc);
    for (const aclDataBuffer* buffer : buffers) aclDestroyDataBuffer(buffer);
  }
  void add(OpTensor tensor) {
    descs.push_back(tensor.desc);
    buffers.push_back(tensor.buffer);
  }
  int size() const { return static_cast<int>(descs.size()); }

  std::vector<aclTensorDesc*> descs;
  std::vector<aclDataBuffer*> buffers;
};

inline int execute(const char* type, OpTensors& inputs, OpTensors& outputs, aclopAttr* attr,
                   aclrtStream stream = nullptr) {
  return aclopCompileAndExecute(type, inputs.size(), inputs.descs.data(), inputs.buffers.data(), outputs.size(),
                                outputs.descs.data(), outputs.buffers.data(), attr, ACL_ENGINE_SYS, ACL_COMPILE_SYS,
                                nullptr, stream);
}
inline int execute_v2(const char* type, OpTensors& inputs, OpTensors& outputs, aclopAttr* attr,
                      aclrtStream stream = nullptr) {
  return aclopCompileAndExecuteV2(type, inputs.size(), inputs.descs.data(), inputs.buffers.data(), outputs.size(),
                                  outputs.descs.data(), outputs.buffers.data(), attr, ACL_ENGINE_SYS, ACL_COMPILE_SYS,
                                  nullptr, stream);
}

// The call alone: nothing is left of what described it.
inline int call_by_name(const char* type, const std::vector<Array*>& inputs, const std::vector<Array*>& outputs,
                        aclopAttr* attr = nullptr, aclrtStream stream = nullptr) {
  OpTensors in(inputs), out(outputs);
  return execute(type, in, out, attr, stream);
}
