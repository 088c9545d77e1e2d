// What all binding files need: nanobind, and how errors become Python exceptions.
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

// A failed status, thrown: becomes descend.aclnn.AclnnError or one of its subclasses.
struct StatusError {
  Status status;
};

inline void check(Status status) {
  if (!status.ok()) throw StatusError{std::move(status)};
}

// Sets what turns a failed status into an exception: descend.errors.from_status(status, name, sentence, no_memory).
void set_exception_factory(nb::object factory);

// A sentence as a Python string. Bytes that are no UTF-8, which an environment variable may have, are escaped.
nb::object text(const std::string& sentence);

// Sets the Python error for the current C++ exception. To be called inside catch (...).
void set_python_error() noexcept;

// Throws the exception with which a function of another library has failed, or one that says that it set none.
[[noreturn]] void throw_python_error();

// Reports an exception that nobody raises: the deleter of another library's array may have left one behind.
void report_left_exception() noexcept;

// Runs body. If it throws, sets a Python error and returns null, as functions of CPython's C API do. The exception with
// which an ending interpreter unwinds threads is passed on.
template <class Body>
PyObject* guarded(Body body) {
  try {
    PyObject* const result = body();
    if (result != nullptr) report_left_exception();
    return result;
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

// Takes the GIL back. If the interpreter is ending, Python up to 3.13 unwinds the thread. nanobind and destructors
// cannot pass that on, so the thread stops here until the process ends, as it does from Python 3.14 on.
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

// Whether an array no longer has its memory: JAX arrays can be deleted, or donated to a computation.
bool is_deleted(PyObject* object);

// What messages call an object: "an int", "a numpy.ndarray", "a deleted jaxlib._jax.ArrayImpl", "None".
std::string what_is(PyObject* object);

// The length of a tuple or list, and an item, borrowed.
inline Py_ssize_t length(PyObject* sequence) {
  return PyTuple_Check(sequence) ? PyTuple_Size(sequence) : PyList_Size(sequence);
}
inline PyObject* item(PyObject* sequence, Py_ssize_t index) {
  return PyTuple_Check(sequence) ? PyTuple_GetItem(sequence, index) : PyList_GetItem(sequence, index);
}

// The UTF-8 of a str. Lone surrogates, which UTF-8 cannot encode, are escaped.
std::string utf8(PyObject* string);

// The text of the argument `name`. Throws if it is no str.
std::string text_argument(const std::string& name, nb::handle object);

}  // namespace descend::python
