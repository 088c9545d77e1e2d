// What all binding files need: nanobind, and errors on their way to Python.
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

#include <new>
#include <string>

#include "runtime/status.h"

namespace descend::python {

namespace nb = nanobind;

// A Python exception with a plain sentence.
struct Error {
  PyObject* type;  // borrowed: a built-in exception class
  std::string sentence;
};

// A failed status: becomes descend.aclnn.AclnnError or one of its kin.
struct StatusError {
  Status status;
};

inline void check(Status status) {
  if (!status.ok()) throw StatusError{std::move(status)};
}

// Sets the Python error that the exception in flight stands for. To be called inside catch (...).
void set_python_error() noexcept;

// Runs body and turns what it throws into a Python error and a null result: for functions in CPython's own convention.
// A thread that the ending interpreter unwinds passes through.
template <class Body>
PyObject* guarded(Body body) {
  try {
    return body();
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

// Takes the GIL back. Where the interpreter is ending, Python up to 3.13 unwinds the thread, and neither nanobind nor a
// destructor lets that through: the thread stops here instead, until the process ends, as it does from Python 3.14 on.
inline void take_gil(PyThreadState* state) {
  try {
    PyEval_RestoreThread(state);
  } catch (const abi::__forced_unwind&) {
    for (;;) pause();
  }
}

// Runs body without the GIL.
template <class Body>
auto without_gil(Body body) {
  PyThreadState* state = PyEval_SaveThread();
  try {
    auto result = body();
    take_gil(state);
    return result;
  } catch (const std::bad_alloc&) {
    take_gil(state);
    throw;
  }
}

// The name of an object's type: "int", "numpy.ndarray", "torch.Tensor".
std::string type_name(PyObject* object);

// Whether an array has given up its memory, as JAX arrays do that are deleted or donated to a computation.
bool is_deleted(PyObject* object);

// What a sentence calls an object: "an int", "a numpy.ndarray", "a deleted jaxlib._jax.ArrayImpl", "None".
std::string what_is(PyObject* object);

// Any str; lone surrogates, which UTF-8 has not, are escaped.
std::string utf8(PyObject* string);

// The text of the argument `name`. Throws where it is no str.
std::string text_argument(const std::string& name, nb::handle object);

void bind_calls(nb::module_& module);    // the operators: functional and two-phase
void bind_engine(nb::module_& module);   // what descend._torch shares
void bind_runtime(nb::module_& module);  // streams, memory, products, threads
void bind_tables(nb::module_& module);   // the contracts as data

}  // namespace descend::python
