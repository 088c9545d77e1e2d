#include "bindings/refusal.h"

#include <string_view>

namespace descend::python {

void refuse(const Call& call, int i, const std::string& why) {
  throw StatusError{call.fail(Code::kParamInvalid, call.name(i), " ", why)};
}

void refuse_type(const Call& call, int i, PyObject* object) {
  throw Error{PyExc_TypeError, concat(call.operator_name(), ": ", call.name(i), " is ", what_is(object),
                                      ", but must be an array (NumPy, PyTorch, or anything with DLPack).")};
}

void refuse_unreadable(const Call& call, int i, PyObject* object, const nb::python_error& error) {
  if (!error.matches(PyExc_Exception) || error.matches(PyExc_MemoryError)) throw;
  if (is_deleted(object)) refuse(call, i, concat("is ", what_is(object), ", whose memory was freed or donated."));
  const nb::object message = nb::steal(PyObject_Str(error.value().ptr()));
  if (!message.is_valid()) PyErr_Clear();
  const std::string text = message.is_valid() ? utf8(message.ptr()) : std::string();
  // Only the first line, since C++ libraries append their stack.
  std::string_view reason(text);
  reason = reason.substr(0, reason.find('\n'));
  while (!reason.empty() && (reason.back() == '.' || reason.back() == ' ')) reason.remove_suffix(1);
  const std::string type = reason.empty() ? utf8(nb::str(error.type().attr("__name__")).ptr()) : "";
  refuse(call, i, concat("is ", what_is(object), " that cannot be read: ", reason, type, "."));
}

}  // namespace descend::python
