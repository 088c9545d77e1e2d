// CPython's buffer interface. The stable ABI has it from Python 3.11 on, but it has been the same since 3.3, and 3.10
// exports the functions, too: only the headers hide it there.
#pragma once

#include <Python.h>

#if defined(Py_LIMITED_API) && Py_LIMITED_API + 0 < 0x030B0000

extern "C" {
struct Py_buffer {
  void* buf;
  PyObject* obj;
  Py_ssize_t len;
  Py_ssize_t itemsize;
  int readonly;
  int ndim;
  char* format;
  Py_ssize_t* shape;
  Py_ssize_t* strides;
  Py_ssize_t* suboffsets;
  void* internal;
};

PyAPI_FUNC(int) PyObject_GetBuffer(PyObject* object, Py_buffer* view, int flags);
PyAPI_FUNC(int)
    PyBuffer_FillInfo(Py_buffer* view, PyObject* object, void* memory, Py_ssize_t bytes, int readonly, int flags);
PyAPI_FUNC(void) PyBuffer_Release(Py_buffer* view);
}

#define PyBUF_FORMAT 0x0004
#define PyBUF_WRITABLE 0x0001
#define PyBUF_C_CONTIGUOUS (0x0020 | 0x0010 | 0x0008)

#endif
