#include "bindings/python.h"

#include <exception>
#include <string_view>

namespace descend::python {
namespace {

PyObject* exception_factory = nullptr;

void set_status_error(const StatusError& error) {
  const Status& status = error.status;
  if (exception_factory != nullptr) {
    const nb::object exception = nb::handle(exception_factory)(static_cast<int>(status.code), code_name(status.code),
                                                               text(status.sentence), status.no_memory);
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  } else {
    PyErr_SetObject(PyExc_RuntimeError, text(status.sentence).ptr());
  }
}

}  // namespace

nb::object text(const std::string& sentence) {
  nb::object object =
      nb::steal(PyUnicode_DecodeUTF8(sentence.data(), static_cast<Py_ssize_t>(sentence.size()), "backslashreplace"));
  if (!object.is_valid()) throw nb::python_error();
  return object;
}

void set_exception_factory(nb::object factory) { exception_factory = factory.release().ptr(); }

void throw_python_error() {
  if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_SystemError, "it failed and did not say why");
  throw nb::python_error();
}

void report_left_exception() noexcept {
  if (PyErr_Occurred() != nullptr) PyErr_WriteUnraisable(nullptr);
}

void set_python_error() noexcept {
  report_left_exception();
  try {
    throw;
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const Error& error) {
    try {
      PyErr_SetObject(error.type, text(error.sentence).ptr());
    } catch (nb::python_error& inner) {
      inner.restore();
    }
  } catch (const StatusError& error) {
    try {
      set_status_error(error);
    } catch (nb::python_error& inner) {
      inner.restore();
    }
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

std::string type_name(PyObject* object) {
  const nb::handle type(reinterpret_cast<PyObject*>(Py_TYPE(object)));
  const std::string name = utf8(nb::str(type.attr("__qualname__")).ptr());
  const nb::object module = nb::getattr(type, "__module__", nb::none());  // a class may have deleted it
  const std::string prefix = module.is_none() ? "builtins" : utf8(nb::str(module).ptr());
  return prefix == "builtins" ? name : prefix + "." + name;
}

bool is_deleted(PyObject* object) {
  const nb::error_scope kept;
  const nb::object deleted = nb::steal(PyObject_CallMethod(object, "is_deleted", nullptr));
  PyErr_Clear();
  return deleted.ptr() == Py_True;
}

std::string what_is(PyObject* object) {
  if (object == Py_None) return "None";
  if (is_deleted(object)) return concat("a deleted ", type_name(object));
  const std::string name = type_name(object);
  return (std::string_view("AEIOaeio").find(name[0]) == std::string_view::npos ? "a " : "an ") + name;
}

std::string utf8(PyObject* string) {
  Py_ssize_t size = 0;
  if (const char* text = PyUnicode_AsUTF8AndSize(string, &size)) return {text, static_cast<size_t>(size)};
  PyErr_Clear();
  const nb::object bytes = nb::steal(PyUnicode_AsEncodedString(string, "utf-8", "backslashreplace"));
  if (!bytes.is_valid()) throw nb::python_error();
  return {PyBytes_AsString(bytes.ptr()), static_cast<size_t>(PyBytes_Size(bytes.ptr()))};
}

std::string text_argument(const std::string& name, nb::handle object) {
  if (PyUnicode_Check(object.ptr())) return utf8(object.ptr());
  throw Error{PyExc_TypeError, concat(name, " is ", what_is(object.ptr()), ", but must be a string.")};
}

}  // namespace descend::python
