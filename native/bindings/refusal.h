// Errors for an array argument that is refused.
#pragma once

#include <string>

#include "bindings/python.h"
#include "operators/operator.h"

namespace descend::python {

// "<operator>: <parameter> <why>"
[[noreturn]] void refuse(const Call& call, int i, const std::string& why);

// For an object that is no array.
[[noreturn]] void refuse_type(const Call& call, int i, PyObject* object);

// For an object whose own code raised an error while it was read. The sentence has the first line of that error. Errors
// such as KeyboardInterrupt and MemoryError are thrown again. To be called inside catch (nb::python_error&).
[[noreturn]] void refuse_unreadable(const Call& call, int i, PyObject* object, const nb::python_error& error);

}  // namespace descend::python
