#include "bindings/arguments.h"

namespace descend::python {
namespace {

[[noreturn]] void wrong_type(const Call& call, int i, PyObject* object, const char* expected) {
  throw Error{PyExc_TypeError, concat(call.operator_name(), ": ", call.name(i), " is ", what_is(object),
                                      ", but must be ", expected, ".")};
}

// Clears an error that an object's own code raised, since a message about the argument follows. Errors such as
// KeyboardInterrupt are thrown.
void forget_error() {
  if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_MemoryError)) throw nb::python_error();
  PyErr_Clear();
}

// A bool, or an object whose dtype is bool: numpy.bool_, a 0-d array.
bool is_boolean(PyObject* object) {
  if (PyBool_Check(object)) return true;
  if (PyLong_CheckExact(object) || PyFloat_CheckExact(object)) return false;
  const nb::object dtype = nb::getattr(nb::handle(object), "dtype", nb::none());
  if (dtype.is_none()) return false;
  const std::string name = utf8(nb::str(dtype).ptr());
  return name == "bool" || name == "torch.bool";
}

// In some libraries an array of one element converts to a number.
bool has_length(PyObject* object) {
  if (PyLong_Check(object)) return false;
  if (PyObject_Size(object) >= 0) return true;
  forget_error();
  return false;
}

std::optional<bool> as_bool(PyObject* object) {
  if (PyBool_Check(object)) return object == Py_True;
  if (!is_boolean(object) || has_length(object)) return std::nullopt;
  const int truth = PyObject_IsTrue(object);
  if (truth < 0) throw nb::python_error();
  return truth == 1;
}

[[noreturn]] void too_large(const Call& call, int i, const char* what) {
  throw StatusError{call.fail(Code::kParamInvalid, call.name(i), " ", what)};
}

void read_list(Call& call, int i, PyObject* object, bool booleans) {
  const char* const expected = booleans ? "a sequence of booleans" : "a sequence of integers";
  Dims& list = call[i].list;
  list.clear();
  if (PyUnicode_Check(object) || PyBytes_Check(object)) wrong_type(call, i, object, expected);
  const nb::object sequence = nb::steal(PyLong_Check(object) ? nullptr : PySequence_Fast(object, ""));
  if (!sequence.is_valid()) {
    if (PyErr_Occurred()) forget_error();
    const auto single = booleans ? std::nullopt : as_integer(object);  // normalized_shape=64
    if (!single) wrong_type(call, i, object, expected);
    if (!single->fits) too_large(call, i, "does not fit into 64 bits.");
    list.push_back(single->value);
    return;
  }
  const Py_ssize_t count = length(sequence.ptr());
  std::vector<int64_t> values(count);
  for (Py_ssize_t k = 0; k < count; ++k) {
    // Held, since the item's own code may change the list.
    const nb::object held = nb::borrow(k < length(sequence.ptr()) ? item(sequence.ptr(), k) : Py_None);
    if (booleans) {
      const auto value = as_bool(held.ptr());
      if (!value) wrong_type(call, i, object, expected);
      values[k] = *value;
    } else {
      const auto value = as_integer(held.ptr());
      if (!value || has_length(held.ptr())) wrong_type(call, i, object, expected);
      if (!value->fits) too_large(call, i, "holds a number that does not fit into 64 bits.");
      values[k] = value->value;
    }
  }
  list.assign(values.data(), values.size());
}

void read_attribute(Call& call, int i, PyObject* object) {
  Argument& argument = call[i];
  switch (call.op->parameters[i].kind) {
    case Kind::kInt:
      if (const auto number = as_integer(object)) {
        if (!number->fits) too_large(call, i, "does not fit into 64 bits.");
        argument.integer = number->value;
        return;
      }
      wrong_type(call, i, object, "an integer");
    case Kind::kFloat:
      check_number(call, i, object);
      if (const auto number = as_real(object)) {
        if (!number->fits) too_large(call, i, "does not fit into a floating-point number.");
        argument.real = number->value;
        return;
      }
      wrong_type(call, i, object, "a number");
    case Kind::kBool:
      if (const auto value = as_bool(object)) {
        argument.flag = *value;
        return;
      }
      wrong_type(call, i, object, "a boolean");
    case Kind::kString:
      if (!PyUnicode_Check(object)) wrong_type(call, i, object, "a string");
      argument.text = utf8(object);
      return;
    case Kind::kIntArray:
      return read_list(call, i, object, false);
    case Kind::kBoolArray:
      return read_list(call, i, object, true);
    case Kind::kTensor:
      break;
  }
}

}  // namespace

std::optional<Integer> as_integer(PyObject* object) {
  if (!PyIndex_Check(object) || is_boolean(object)) return std::nullopt;
  const nb::object number = nb::steal(PyNumber_Index(object));
  if (!number.is_valid()) {  // every array has __index__, whatever its shape and dtype
    forget_error();
    return std::nullopt;
  }
  int overflow = 0;
  const int64_t value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  return Integer{value, overflow == 0};
}

std::optional<Real> as_real(PyObject* object) {
  if (PyUnicode_Check(object) || is_boolean(object)) return std::nullopt;  // NumPy's strings have __float__
  const double value = PyFloat_AsDouble(object);
  if (value != -1 || !PyErr_Occurred()) return Real{value, true};
  const bool large = PyErr_ExceptionMatches(PyExc_OverflowError) != 0;
  forget_error();
  return large ? std::optional(Real{0, false}) : std::nullopt;
}

Family Reader::array(int i, PyObject* object, Use use, std::vector<nb::object>& keep) {
  try {
    const Family family = read_array(call_, i, object, is_output(i), use, keep);
    read_torch_ = read_torch_ || family == Family::kTorch;
    return family;
  } catch (const Error&) {
    remember(i);
  } catch (const StatusError&) {
    remember(i);
  }
  return Family::kOther;
}

void Reader::metadata(int i, PyObject* object, std::vector<nb::object>& keep) {
  try {
    read_metadata(call_, i, object, is_output(i), keep);
  } catch (const Error&) {
    remember(i);
  } catch (const StatusError&) {
    remember(i);
  }
}

void Reader::attribute(int i, PyObject* object) {
  if (object == Py_None) {
    call_[i].state = Argument::State::kNull;
    return;
  }
  call_[i].state = Argument::State::kGiven;
  try {
    read_attribute(call_, i, object);
  } catch (const StatusError&) {
    remember(i);
  }
}

void Reader::remember(int i) {
  call_[i] = Argument{};  // clears what an earlier call or a reading that failed left there
  call_[i].state = Argument::State::kUnread;
  unread_.push_back({i, std::current_exception()});
}

Status Reader::status_or_throw(Status prepared) const {
  if (const Unread* unread = first_unread(); unread != nullptr && prepared.sentence.empty()) {
    std::rethrow_exception(unread->why);
  }
  return prepared;
}

const Reader::Unread* Reader::first_unread() const {
  for (const Unread& unread : unread_) {
    if (is_counted(call_, unread.parameter)) return &unread;
  }
  return nullptr;
}

}  // namespace descend::python
