// The Python module descend._native.
#include <nanobind/nanobind.h>

#include <exception>
#include <new>

#include "bindings/arrays.h"
#include "bindings/python.h"

namespace descend::python {
namespace {

// descend.errors.from_status(status, name, sentence) -> exception
PyObject* exception_factory = nullptr;

void set_status_error(const Status& status) {
  nb::object exception;
  if (exception_factory != nullptr) {
    exception = nb::handle(exception_factory)(static_cast<int>(status.code), code_name(status.code),
                                              nb::str(status.sentence.data(), status.sentence.size()));
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  } else {
    PyErr_SetString(PyExc_RuntimeError, status.sentence.c_str());
  }
}

}  // namespace

void set_python_error() noexcept {
  try {
    throw;
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const Error& error) {
    PyErr_SetString(error.type, error.sentence.c_str());
  } catch (const StatusError& error) {
    try {
      set_status_error(error.status);
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
  const std::string name = nb::str(type.attr("__qualname__")).c_str();
  const std::string module = nb::str(type.attr("__module__")).c_str();
  return module == "builtins" ? name : module + "." + name;
}

}  // namespace descend::python

NB_MODULE(_native, module) {
  using namespace descend::python;
  module.doc() = "The engine of descend. Use the package's own modules instead.";
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error&) {
      set_python_error();
    } catch (const StatusError&) {
      set_python_error();
    }
  });
  module.def(
      "set_exception_factory", [](nb::object factory) { exception_factory = factory.release().ptr(); },
      nb::arg("factory"), "What turns a status into an exception: called with status, name and sentence.");
  nb::set_leak_warnings(false);  // work in flight when the process ends keeps its arrays
  bind_arrays(module);
  bind_calls(module);
  bind_engine(module);
  bind_runtime(module);
  bind_tables(module);
}
