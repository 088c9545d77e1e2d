// The contracts as Python data; src/descend/contract.py gives them types.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings/python.h"
#include "operators/registry.h"

namespace descend::python {
namespace {

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::kTensor:
      return "tensor";
    case Kind::kIntArray:
      return "int_array";
    case Kind::kBoolArray:
      return "bool_array";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kBool:
      return "bool";
    case Kind::kString:
      return "str";
  }
  return "";
}

const char* role_name(Role role) {
  return role == Role::kInput ? "input" : role == Role::kOutput ? "output" : "attribute";
}

const char* c_type(const Operator& op, const Parameter& p) {
  if (p.c_type != nullptr) return p.c_type;
  const auto i = &p - op.parameters.data();
  const auto over = [i](const Parameter& output) { return output.in_place_of == i; };
  if (std::any_of(op.parameters.begin(), op.parameters.end(), over)) return "aclTensor*";
  switch (p.kind) {
    case Kind::kTensor:
      return p.role == Role::kOutput && !op.const_outputs ? "aclTensor*" : "const aclTensor*";
    case Kind::kIntArray:
      return "const aclIntArray*";
    case Kind::kBoolArray:
      return "const aclBoolArray*";
    case Kind::kInt:
      return "int64_t";
    case Kind::kFloat:
      return "double";
    case Kind::kBool:
      return "bool";
    case Kind::kString:
      return "char*";
  }
  return "";
}

// The operator's first phase in C, and those of its variants; `object` is the C++ name.
void describe_c(const Operator& op, const std::string& object, nb::list& functions) {
  nb::list parameters;
  for (const Parameter& p : op.parameters) {
    if (p.in_place_of < 0) parameters.append(nb::make_tuple(c_type(op, p), p.name));
  }
  nb::dict entry;
  entry["name"] = op.c_name;
  entry["summary"] = op.summary;
  entry["object"] = object;
  entry["parameters"] = parameters;
  functions.append(entry);
  if (op.variants == nullptr) return;
  for (size_t i = 0; i < op.variants().size(); ++i) {
    describe_c(*op.variants()[i], "*" + object + ".variants()[" + std::to_string(i) + "]", functions);
  }
}

nb::list product_names(ProductSet set) {
  nb::list names;
  for (const ProductInfo& entry : products()) {
    if (set.has(entry.product)) names.append(entry.name);
  }
  return names;
}

nb::tuple dtype_names(DtypeSet set) {
  nb::list names;
  for (int number = 0; number < 64; ++number) {
    const auto dtype = static_cast<Dtype>(number);
    if (set.has(dtype)) names.append(dtype_name(dtype));
  }
  return nb::tuple(names);
}

nb::dict describe(const Operator& op) {
  nb::list parameters;
  std::vector<const char*> tensors;
  for (const Parameter& p : op.parameters) {
    nb::dict entry;
    entry["name"] = p.name;
    entry["python"] = p.python;
    entry["kind"] = kind_name(p.kind);
    entry["role"] = role_name(p.role);
    entry["optional"] = p.optional || p.optional_on_host || p.optional_if_unused;
    entry["default"] = p.default_value ? nb::object(nb::str(p.default_value)) : nb::none();
    entry["keyword_only"] = p.keyword_only;
    entry["shape"] = p.shape;
    entry["description"] = p.description;
    parameters.append(entry);
    if (p.kind == Kind::kTensor) tensors.push_back(p.python);
  }
  nb::list rows;
  for (const DtypeRow& row : op.dtypes) {
    nb::dict dtypes;
    for (size_t i = 0; i < tensors.size(); ++i) dtypes[tensors[i]] = dtype_names(row.sets[i]);
    nb::dict entry;
    entry["products"] = product_names(row.products);
    entry["dtypes"] = dtypes;
    rows.append(entry);
  }
  nb::list errors;
  for (const ErrorRule& rule : op.errors) {
    nb::dict entry;
    entry["status"] = static_cast<int>(rule.code);
    entry["name"] = code_name(rule.code);
    entry["when"] = rule.when;
    errors.append(entry);
  }
  nb::dict result;
  result["name"] = op.name;
  result["c_name"] = op.c_name;
  result["summary"] = op.summary;
  result["formula"] = op.formula;
  result["source"] = op.source;
  result["notes"] = op.notes;
  result["products"] = product_names(op.products);
  result["parameters"] = parameters;
  result["dtypes"] = rows;
  result["errors"] = errors;
  return result;
}

}  // namespace

void bind_tables(nb::module_& module) {
  module.def(
      "products",
      [] {
        nb::list list;
        for (const ProductInfo& entry : products()) {
          nb::dict product;
          product["name"] = entry.name;
          product["documents"] = entry.documents;
          product["soc"] = entry.soc;
          list.append(product);
        }
        return list;
      },
      "The products, as dictionaries.");
  module.def(
      "operators",
      [] {
        nb::list list;
        for (const Operator* op : operators()) list.append(describe(*op));
        return list;
      },
      "The operators' contracts, as dictionaries.");
  module.def(
      "c_interface",
      [] {
        nb::list list;
        for (const Operator* op : operators()) {
          nb::list functions;
          describe_c(*op, std::string("descend::") + op->name, functions);
          nb::dict header;
          header["name"] = op->name;
          header["functions"] = functions;
          list.append(header);
        }
        return list;
      },
      "The headers of the operators' C functions, as dictionaries.");
}

}  // namespace descend::python
