// Attributes of a call of an operator by name (aclop).
#include "acl/acl_op.h"
#include "capi/objects.h"

using namespace descend;
using namespace descend::capi;

namespace {

// make(Attribute&) fills in the value. It is called once the object and the name are known not to be null.
template <class Make>
aclError set(const char* function, aclopAttr* attr, const char* name, Make make) noexcept {
  return boundary(function, [&]() -> Status {
    if (attr == nullptr) return null_argument("attr");
    if (name == nullptr) return null_argument("attrName");
    Attribute value;
    DESCEND_RETURN_IF_ERROR(make(value));
    const bool alive = state().attributes.with(
        attr, [&](Attributes& found) { found.insert_or_assign(std::string(name), std::move(value)); });
    return alive ? Status{} : not_alive("attr");
  });
}

Status check_list(const char* count_name, int count, const void* values) {
  if (count < 0) return failure(Code::kInvalidParam, count_name, " is ", count, ", but must be at least 0.");
  if (values != nullptr || count == 0) return {};
  return failure(Code::kInvalidParam, "values is null, but ", count_name, " is ", count, ".");
}

template <class List, class T>
aclError set_list(const char* function, aclopAttr* attr, const char* name, int count, const T* values) noexcept {
  return set(function, attr, name, [&](Attribute& value) -> Status {
    DESCEND_RETURN_IF_ERROR(check_list("numValues", count, values));
    if (count == 0) {
      value = List();
    } else {
      value = List(values, values + count);
    }
    return {};
  });
}

template <class T>
aclError set_value(const char* function, aclopAttr* attr, const char* name, T given) noexcept {
  return set(function, attr, name, [&](Attribute& value) -> Status {
    value = given;
    return {};
  });
}

}  // namespace

aclopAttr* aclopCreateAttr() {
  return create<aclopAttr>("aclopCreateAttr", [] { return state().attributes.insert(Attributes()); });
}

void aclopDestroyAttr(const aclopAttr* attr) { (void)destroy("aclopDestroyAttr", "attr", state().attributes, attr); }

aclError aclopSetAttrBool(aclopAttr* attr, const char* attrName, uint8_t attrValue) {
  return set_value("aclopSetAttrBool", attr, attrName, attrValue != 0);
}

aclError aclopSetAttrInt(aclopAttr* attr, const char* attrName, int64_t attrValue) {
  return set_value("aclopSetAttrInt", attr, attrName, attrValue);
}

aclError aclopSetAttrFloat(aclopAttr* attr, const char* attrName, float attrValue) {
  return set_value("aclopSetAttrFloat", attr, attrName, attrValue);
}

aclError aclopSetAttrString(aclopAttr* attr, const char* attrName, const char* attrValue) {
  return set("aclopSetAttrString", attr, attrName, [&](Attribute& value) -> Status {
    if (attrValue == nullptr) return null_argument("attrValue");
    value = std::string(attrValue);
    return {};
  });
}

aclError aclopSetAttrDataType(aclopAttr* attr, const char* attrName, aclDataType attrValue) {
  return set_value("aclopSetAttrDataType", attr, attrName, attrValue);
}

aclError aclopSetAttrListBool(aclopAttr* attr, const char* attrName, int numValues, const uint8_t* values) {
  return set("aclopSetAttrListBool", attr, attrName, [&](Attribute& value) -> Status {
    DESCEND_RETURN_IF_ERROR(check_list("numValues", numValues, values));
    Bools list;
    for (int i = 0; i < numValues; ++i) list.values.push_back(values[i] != 0);
    value = std::move(list);
    return {};
  });
}

aclError aclopSetAttrListInt(aclopAttr* attr, const char* attrName, int numValues, const int64_t* values) {
  return set_list<std::vector<int64_t>>("aclopSetAttrListInt", attr, attrName, numValues, values);
}

aclError aclopSetAttrListFloat(aclopAttr* attr, const char* attrName, int numValues, const float* values) {
  return set_list<std::vector<float>>("aclopSetAttrListFloat", attr, attrName, numValues, values);
}

aclError aclopSetAttrListString(aclopAttr* attr, const char* attrName, int numValues, const char** values) {
  return set("aclopSetAttrListString", attr, attrName, [&](Attribute& value) -> Status {
    DESCEND_RETURN_IF_ERROR(check_list("numValues", numValues, values));
    std::vector<std::string> list;
    for (int i = 0; i < numValues; ++i) {
      if (values[i] == nullptr) return failure(Code::kInvalidParam, "values[", i, "] is null, but must be given.");
      list.emplace_back(values[i]);
    }
    value = std::move(list);
    return {};
  });
}

aclError aclopSetAttrListDataType(aclopAttr* attr, const char* attrName, int numValues, const aclDataType values[]) {
  return set_list<std::vector<aclDataType>>("aclopSetAttrListDataType", attr, attrName, numValues, values);
}

aclError aclopSetAttrListListInt(aclopAttr* attr, const char* attrName, int numLists, const int* numValues,
                                 const int64_t* const values[]) {
  return set("aclopSetAttrListListInt", attr, attrName, [&](Attribute& value) -> Status {
    DESCEND_RETURN_IF_ERROR(check_list("numLists", numLists, values));
    if (numValues == nullptr && numLists > 0) return null_argument("numValues");
    std::vector<std::vector<int64_t>> lists;
    for (int i = 0; i < numLists; ++i) {
      const int count = numValues[i];
      if (count < 0) {
        return failure(Code::kInvalidParam, "numValues[", i, "] is ", count, ", but must be at least 0.");
      }
      if (values[i] == nullptr && count > 0) {
        return failure(Code::kInvalidParam, "values[", i, "] is null, but numValues[", i, "] is ", count, ".");
      }
      lists.push_back(count == 0 ? std::vector<int64_t>() : std::vector<int64_t>(values[i], values[i] + count));
    }
    value = std::move(lists);
    return {};
  });
}
